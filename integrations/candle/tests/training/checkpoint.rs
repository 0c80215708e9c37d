use crate::support::*;
use candle_core::{DType, Device};
use candle_nn::{Init, VarMap};
use hccl::Communicator;
use hccl_candle::{AdamW, AdamWConfig, Buffers, Checkpoints, DataParallel, Error, Optimizer, Options, Progress};
use hccl_candle::{Result, Schedule, Sgd, SgdConfig, local};
use std::fs;
use std::path::{Path, PathBuf};

const SGD: SgdConfig = SgdConfig { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.01, nesterov: true };

/// Everything that a run ends with, bit for bit.
#[derive(Debug, PartialEq)]
struct End {
    step: u64,
    values: Vec<Vec<f64>>,
    local: Vec<f64>,
    random: u64,
}

/// Trains up to `steps`, from the latest checkpoint if there is one, saving every `every` steps; `die` stops before the
/// save of that step, as a killed process would.
fn train(comm: Communicator, dir: &Path, steps: u64, every: u64, die: Option<u64>) -> Result<End> {
    let checkpoints = Checkpoints::open(dir)?;
    let rank = comm.rank().index();
    let model = Mlp::new(DType::F32, 1)?;
    model.map.get(2, "seen.local", Init::Const(0.0), DType::F64, &Device::Cpu)?;
    let options = Options::default().buffer("local", Buffers::Local);
    let mut dp = DataParallel::new(comm, &model.map, options)?;
    let mut sgd = Sgd::new(dp.parameters(), SGD)?;
    let schedule = Schedule::warmup_cosine(0.1, 3, 20, 0.0)?;
    let mut progress = Progress { random: vec![rank as u64 + 17], ..Progress::default() };
    if let Some(loaded) = checkpoints.load_latest(&mut dp, &mut sgd)? {
        // The learning rate follows the schedule: it may differ.
        assert!(loaded.changed.iter().all(|change| change.starts_with("lr ")), "{:?}", loaded.changed);
        progress = loaded.progress;
    }
    while progress.step < steps {
        let random = progress.random[0].wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        progress.random = vec![random];
        let from = (random >> 40) as usize % 90;
        let grads = dp.backward(&model.loss(&samples(from, from + 4, DType::F32)?)?)?;
        sgd.set_learning_rate(schedule.at(progress.step));
        sgd.step(&dp.sync(grads)?)?;
        let seen = model.map.data().lock().unwrap()["seen.local"].clone();
        seen.set(&(seen.as_tensor() + from as f64)?)?;
        progress.step += 1;
        progress.position += 4;
        if die == Some(progress.step) {
            break;
        }
        if progress.step.is_multiple_of(every) {
            checkpoints.save(&dp, &sgd, &progress)?;
        }
    }
    let seen = model.map.data().lock().unwrap()["seen.local"].clone();
    let mut values = model.values()?;
    values.pop();
    Ok(End { step: progress.step, values, local: flat(&seen)?, random: progress.random[0] })
}

fn folders(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn step_dir(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("step-{step:012}"))
}

#[test]
fn a_resumed_run_ends_in_the_same_bits() {
    let whole = tempfile::tempdir().unwrap();
    let expected = local(2, |comm| train(comm, whole.path(), 9, 100, None)).unwrap();
    assert_ne!(expected[0].local, expected[1].local, "each rank has data of its own");
    for die in 1..9 {
        let dir = tempfile::tempdir().unwrap();
        let killed = local(2, |comm| train(comm, dir.path(), 9, 2, Some(die))).unwrap();
        assert_eq!(killed[0].step, die);
        let resumed = local(2, |comm| train(comm, dir.path(), 9, 2, None)).unwrap();
        assert_eq!(resumed, expected, "killed at step {die}");
    }
}

#[test]
fn the_last_two_are_kept_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().unwrap();
    local(2, |comm| train(comm, dir.path(), 7, 2, None)).unwrap();
    assert_eq!(folders(dir.path()), ["step-000000000004", "step-000000000006"]);
    let files = ["checksums", "model.safetensors", "optimizer.safetensors", "rank-0000.safetensors"];
    let files = [&files[..], &["rank-0001.safetensors", "state.json"]].concat();
    assert_eq!(folders(&step_dir(dir.path(), 6)), files);
}

#[test]
fn a_save_that_was_cut_short_is_swept_and_harmless() {
    let dir = tempfile::tempdir().unwrap();
    local(2, |comm| train(comm, dir.path(), 2, 2, None)).unwrap();
    let beside = dir.path().join(".hccl-new-1-0");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("model.safetensors"), b"half").unwrap();
    let end = local(2, |comm| train(comm, dir.path(), 4, 2, None)).unwrap();
    assert_eq!(end[0].step, 4);
    assert_eq!(folders(dir.path()), ["step-000000000002", "step-000000000004"]);
}

/// Loads into a fresh replica and gives step, skipped and changed.
fn load(dir: &Path) -> Result<(u64, Vec<String>, Vec<String>)> {
    let loaded = local(2, |comm| {
        let model = Mlp::new(DType::F32, 1)?;
        model.map.get(2, "seen.local", Init::Const(0.0), DType::F64, &Device::Cpu)?;
        let options = Options::default().buffer("local", Buffers::Local);
        let mut dp = DataParallel::new(comm, &model.map, options)?;
        let mut sgd = Sgd::new(dp.parameters(), SGD)?;
        let loaded = Checkpoints::open(dir)?.load_latest(&mut dp, &mut sgd)?;
        let loaded = loaded.ok_or_else(|| Error::Invalid("no checkpoint".into()))?;
        Ok((loaded.progress.step, loaded.skipped, loaded.changed))
    })?;
    assert_eq!(loaded[0], loaded[1]);
    Ok(loaded.into_iter().next().expect("two ranks"))
}

#[test]
fn torn_files_are_refused_and_the_checkpoint_before_is_used() {
    for file in ["checksums", "model.safetensors", "optimizer.safetensors", "rank-0001.safetensors", "state.json"] {
        for damage in ["cut", "empty", "flip", "gone"] {
            let dir = tempfile::tempdir().unwrap();
            local(2, |comm| train(comm, dir.path(), 4, 2, None)).unwrap();
            let path = step_dir(dir.path(), 4).join(file);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "cut" => bytes.truncate(bytes.len() - 1),
                "empty" => bytes.clear(),
                "flip" => *bytes.last_mut().unwrap() ^= 1,
                _ => {}
            }
            match damage {
                "gone" => fs::remove_file(&path).unwrap(),
                _ => fs::write(&path, bytes).unwrap(),
            }
            let (step, skipped, _) = load(dir.path()).unwrap();
            assert_eq!(step, 2, "{file}, {damage}");
            assert!(skipped.len() == 1 && skipped[0].contains(file), "{damage}: {skipped:?}");
            assert!(skipped[0].contains("step-000000000004"), "{skipped:?}");
        }
    }
}

#[test]
fn nothing_but_torn_checkpoints_is_an_error_that_tells_each() {
    let dir = tempfile::tempdir().unwrap();
    local(2, |comm| train(comm, dir.path(), 4, 2, None)).unwrap();
    for step in [2, 4] {
        fs::write(step_dir(dir.path(), step).join("state.json"), b"{}").unwrap();
    }
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("step-000000000002") && error.contains("step-000000000004"), "{error}");
    assert!(error.contains("state.json has 2 bytes"), "{error}");
}

#[test]
fn an_empty_folder_has_nothing_to_load() {
    let dir = tempfile::tempdir().unwrap();
    assert!(load(&dir.path().join("new")).unwrap_err().to_string().contains("no checkpoint"));
}

/// One checkpoint of a model with `w` `[2]` and the buffer `n.running_mean`, of two ranks with SGD.
fn small(dir: &Path) {
    local(2, |comm| {
        let map = small_map(DType::F32, 2)?;
        let dp = DataParallel::new(comm, &map, Options::default())?;
        let sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.1, momentum: 0.5, ..SgdConfig::default() })?;
        Checkpoints::open(dir)?.save(&dp, &sgd, &Progress { step: 3, ..Progress::default() })
    })
    .unwrap();
}

fn small_map(dtype: DType, len: usize) -> Result<VarMap> {
    let map = VarMap::new();
    map.get(len, "w", Init::Const(1.0), dtype, &Device::Cpu)?;
    map.get(1, "n.running_mean", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    Ok(map)
}

fn refused(dir: &Path, ranks: usize, map: fn() -> Result<VarMap>, adamw: bool) -> String {
    let all = errors(ranks, |comm| {
        let map = map()?;
        let before = values(&map)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let checkpoints = Checkpoints::open(dir)?;
        let result = match adamw {
            true => {
                let mut optimizer = AdamW::new(dp.parameters(), AdamWConfig::default())?;
                checkpoints.load_latest(&mut dp, &mut optimizer).map(drop)
            }
            false => {
                let mut optimizer = Sgd::new(dp.parameters(), SgdConfig::default())?;
                checkpoints.load_latest(&mut dp, &mut optimizer).map(drop)
            }
        };
        assert_eq!(values(&map)?, before, "nothing changed");
        result
    });
    assert!(all.iter().all(|error| *error == all[0]), "{all:?}");
    all[0].clone()
}

#[test]
fn a_checkpoint_of_another_run_is_refused_with_all_that_differs() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path());
    let dir = dir.path();
    let fitting = || small_map(DType::F32, 2);
    let world = refused(dir, 3, fitting, false);
    assert!(world.contains("of 2 ranks, this run has 3") && world.contains("step-000000000003"), "{world}");
    let dtype = refused(dir, 2, || small_map(DType::F64, 2), false);
    assert!(dtype.contains("`w` is F32[2] there and F64[2] in this run"), "{dtype}");
    let both = refused(dir, 2, || small_map(DType::F32, 5), true);
    assert!(
        both.contains("F32[2] there and F32[5]") && both.contains("optimizer is sgd, this run's is adamw"),
        "{both}"
    );
    let other = refused(
        dir,
        2,
        || {
            let map = VarMap::new();
            map.get(2, "v", Init::Const(1.0), DType::F32, &Device::Cpu)?;
            Ok(map)
        },
        false,
    );
    assert!(
        other.contains("has the parameter `w` F32[2]") && other.contains("lacks the parameter `v` F32[2]"),
        "{other}"
    );
    assert!(other.contains("has the buffer `n.running_mean` F32[1] Broadcast"), "{other}");
}

#[test]
fn changed_hyperparameters_are_told() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path());
    let changed = local(2, |comm| {
        let map = small_map(DType::F32, 2)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.3, momentum: 0.5, ..SgdConfig::default() })?;
        Ok(Checkpoints::open(dir.path())?.load_latest(&mut dp, &mut sgd)?.expect("a checkpoint").changed)
    });
    assert_eq!(changed.unwrap(), vec![vec!["lr was 0.1, is 0.3".to_string()]; 2]);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_before_training() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Checkpoints::open(file.join("below")).unwrap_err().to_string();
    assert!(error.contains("file/below") && error.contains("cannot make the checkpoint folder"), "{error}");
    let error = Checkpoints::open("/proc/1/hccl").unwrap_err().to_string();
    assert!(error.contains("/proc/1/hccl"), "{error}");
}

#[test]
fn what_rank_0_cannot_write_fails_every_rank_and_leaves_the_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path());
    let all = errors(2, |comm| {
        let map = small_map(DType::F32, 2)?;
        let dp = DataParallel::new(comm, &map, Options::default())?;
        let sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
        let checkpoints = Checkpoints::open(dir.path())?;
        // A file in the place of the next checkpoint's predecessor cannot be pruned as a folder.
        if dp.comm().rank().index() == 0 {
            fs::write(step_dir(dir.path(), 1), b"in the way").map_err(|e| Error::Invalid(e.to_string()))?;
        }
        dp.comm().barrier()?;
        checkpoints.keep(1).save(&dp, &sgd, &Progress { step: 4, ..Progress::default() }).map(drop)
    });
    assert!(all[0].contains("step-000000000001"), "{all:?}");
    assert!(all[1].starts_with("rank 0: ") && all[1].contains("step-000000000001"), "{all:?}");
    assert!(step_dir(dir.path(), 4).join("checksums").exists());
}

#[test]
fn ranks_at_different_steps_do_not_save() {
    let dir = tempfile::tempdir().unwrap();
    let all = errors(2, |comm| {
        let map = small_map(DType::F32, 2)?;
        let step = 3 + comm.rank().index() as u64;
        let dp = DataParallel::new(comm, &map, Options::default())?;
        let sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
        Checkpoints::open(dir.path())?.save(&dp, &sgd, &Progress { step, ..Progress::default() }).map(drop)
    });
    assert!(all.iter().all(|e| e.contains("rank 0 is at step 3, rank 1 at step 4")), "{all:?}");
    assert!(folders(dir.path()).is_empty());
}

#[test]
fn accumulated_batches_are_not_saved_over() {
    let dir = tempfile::tempdir().unwrap();
    let all = errors(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default().accumulate(2))?;
        let sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
        let grads = dp.backward(&model.loss(&samples(0, 2, DType::F32)?)?)?;
        assert!(dp.accumulate(grads)?.is_none());
        Checkpoints::open(dir.path())?.save(&dp, &sgd, &Progress::default()).map(drop)
    });
    assert!(all.iter().all(|e| e.contains("1 accumulated batches")), "{all:?}");
}

#[test]
fn notes_and_numbers_come_back_to_their_own_rank() {
    let dir = tempfile::tempdir().unwrap();
    let found = local(2, |comm| {
        let map = small_map(DType::F32, 2)?;
        let rank = comm.rank().index() as u64;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let mut sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
        let notes = [("sampler".to_string(), format!("rank {rank}"))].into();
        let progress = Progress { step: 1, epoch: 2, position: 3 + rank, random: vec![u64::MAX - rank], notes };
        let checkpoints = Checkpoints::open(dir.path())?;
        checkpoints.save(&dp, &sgd, &progress)?;
        let loaded = checkpoints.load_latest(&mut dp, &mut sgd)?.expect("a checkpoint");
        Ok(loaded.progress == progress)
    });
    assert_eq!(found.unwrap(), [true, true]);
}
