//! The program itself, as processes: it learns, two ranks are one on the joined batch, a killed run continues bit for
//! bit, and bad input is refused by name.
#![cfg(target_os = "linux")]

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use support::{Run, column, csv, run, shm, start};

/// Few and small: a step of a ResNet-50 is work also then.
const SMALL: [&str; 4] = ["--train-samples=16", "--test-samples=8", "--batch=4", "--lr=0.02"];

fn small<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().copied().chain(flags.iter().copied()).collect()
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn two_ranks_learn_and_tell_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (table, picture) = (path(dir.path(), "run.csv"), path(dir.path(), "run.svg"));
    let flags = ["--ranks=2", "--steps=8", "--train-samples=8", "--csv", &table, "--plot", &picture, "--wire=bf16"];
    let run = run(&small(&flags)).succeeded();
    let (header, rows) = csv(&table);
    assert_eq!(header, "step,loss,grad_norm,images_per_s,step_ms,sync_ms");
    assert_eq!(column(&rows, 0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let loss = column(&rows, 1);
    assert!(loss[7] < 0.7 * loss[0], "{loss:?}");
    assert!(rows.iter().flatten().all(|value| value.is_finite() && *value >= 0.0), "{rows:?}");
    assert!(rows.iter().all(|row| row[5] <= row[4] && row[3] > 0.0), "{rows:?}");
    assert!(run.out.contains("[rank 0] step 8/8  loss "), "{}", run.out);
    assert!(run.out.contains("test accuracy ") && run.out.contains(" of 8)"), "{}", run.out);
    assert!(run.out.contains("replica checksum equal on 2 ranks: "), "{}", run.out);
    assert!(!run.out.contains("[rank 1]"), "{}", run.out);
    assert!(fs::read_to_string(&picture).unwrap().contains("images/s"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// Losses, gradient norms and final weights.
fn sequential(dir: &Path, name: &str, flags: &[&str]) -> (Vec<f64>, Vec<f64>, HashMap<String, Tensor>) {
    let (table, checkpoints) = (path(dir, &format!("{name}.csv")), path(dir, name));
    let fixed =
        ["--steps=3", "--order=sequential", "--dtype=f64", "--lr=0.01", "--csv", &table, "--checkpoint", &checkpoints];
    run(&[&small(&[])[..2], flags, &fixed].concat()).succeeded();
    let (_, rows) = csv(&table);
    let model = format!("{checkpoints}/step-000000000003/model.safetensors");
    let weights = candle_core::safetensors::load(model, &Device::Cpu).unwrap();
    fs::remove_dir_all(checkpoints).unwrap();
    (column(&rows, 1), column(&rows, 2), weights)
}

#[test]
fn two_ranks_are_one_on_the_joined_batch() {
    let dir = tempfile::tempdir().unwrap();
    let one = sequential(dir.path(), "one", &["--batch=8"]);
    let two = sequential(dir.path(), "two", &["--ranks=2", "--batch=4", "--sync-bn"]);
    for (a, b) in [(&one.0, &two.0), (&one.1, &two.1)] {
        assert!(a.len() == 3 && a.iter().zip(b).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{a:?} {b:?}");
    }
    assert_eq!(one.2.len(), two.2.len());
    for (name, a) in &one.2 {
        let difference = (a - &two.2[name]).unwrap().abs().unwrap().flatten_all().unwrap();
        let largest = difference.max(0).unwrap().to_scalar::<f64>().unwrap();
        assert!(a.dtype() == DType::F64 && largest < 1e-9, "{name}: {largest}");
    }
    let apart = sequential(dir.path(), "apart", &["--ranks=2", "--batch=4"]);
    assert!((one.0[0] / apart.0[0] - 1.0).abs() > 1e-6, "statistics of each rank alone must not give the same");
}

fn checksum(run: &Run) -> String {
    let line = run.out.lines().find(|line| line.contains("replica checksum equal")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn a_killed_run_resumes_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (path(dir.path(), "whole"), path(dir.path(), "killed"));
    let (whole_csv, killed_csv) = (path(dir.path(), "whole.csv"), path(dir.path(), "killed.csv"));
    let flags = |folder, table| {
        small(&[
            "--ranks=2",
            "--steps=5",
            "--checkpoint-every=2",
            "--accumulate=2",
            "--checkpoint",
            folder,
            "--csv",
            table,
        ])
    };
    let unkilled = run(&flags(&whole, &whole_csv)).succeeded();

    let before = shm();
    let mut running = start(&flags(&killed, &killed_csv));
    running.wait_for("step 3/5");
    // As if the rank had been killed while it wrote a checkpoint.
    let unfinished = Path::new(&killed).join(".hccl-new-4242-0");
    fs::create_dir(&unfinished).unwrap();
    let killed_at = Instant::now();
    running.kill_rank(1);
    let ended = running.finish();
    assert!(killed_at.elapsed() < Duration::from_secs(2), "{:?}", killed_at.elapsed());
    assert_eq!(ended.code, Some(137), "{}", ended.err);
    let last = ended.err.lines().last().unwrap();
    assert!(last.contains("rank 1 of 2 failed first: killed by SIGKILL"), "{}", ended.err);
    ended.assert_nothing_left();
    assert!(!unfinished.exists());
    assert_eq!(shm(), before);

    let other_flags = run(&[&flags(&killed, &killed_csv)[..], &["--resume", "--batch=2"]].concat());
    assert!(other_flags.refused().contains("--batch was 4, is 2"), "{}", other_flags.err);
    let other_world = run(&[&flags(&killed, &killed_csv)[..], &["--resume", "--ranks=1"]].concat());
    assert!(other_world.refused().contains("it is of 2 ranks, this run has 1"), "{}", other_world.err);
    let anew = run(&flags(&killed, &killed_csv));
    assert!(anew.refused().contains("add --resume"), "{}", anew.err);

    let resumed = run(&[&flags(&killed, &killed_csv)[..], &["--resume"]].concat()).succeeded();
    assert!(resumed.out.contains("resumed after step "), "{}", resumed.out);
    assert_eq!(checksum(&resumed), checksum(&unkilled));
    let (whole_rows, killed_rows) = (csv(&whole_csv).1, csv(&killed_csv).1);
    for at in 0..3 {
        assert_eq!(column(&whole_rows, at), column(&killed_rows, at), "column {at}");
    }
    let left: Vec<_> = fs::read_dir(&killed).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_str().unwrap().starts_with("step-")), "{left:?}");
}

#[test]
fn a_folder_of_images_trains_in_this_process() {
    let dir = tempfile::tempdir().unwrap();
    for (class, shade) in [("dark", 20u8), ("light", 220)] {
        fs::create_dir(dir.path().join(class)).unwrap();
        for number in 0..4u8 {
            let picture = image::RgbImage::from_fn(20, 14, |x, y| image::Rgb([shade + number, x as u8, y as u8]));
            picture.save(dir.path().join(class).join(format!("{number}.png"))).unwrap();
        }
    }
    let images = path(dir.path(), "");
    let flags = ["--images", &images, "--image-size=16", "--batch=3", "--steps=2", "--momentum=0", "--normalize=none"];
    let run = run(&flags).succeeded();
    assert!(run.out.contains("step 2/2  loss ") && run.out.contains("equal on 1 rank: "), "{}", run.out);
    assert!(!run.out.contains("[rank 0]"), "{}", run.out);
    fs::write(dir.path().join("dark/9.png"), b"no picture").unwrap();
    let broken = support::run(&["--images", &images]);
    assert!(broken.refused().contains("9.png"), "{}", broken.err);
}

#[test]
fn compare_prints_the_speed_up() {
    let run = run(&small(&["--ranks=2", "--steps=2", "--compare"])).succeeded();
    let table: Vec<&str> = run.out.lines().skip_while(|line| !line.starts_with("run ")).collect();
    assert_eq!(table.iter().filter(|line| !line.is_empty()).count(), 4, "{}", run.out);
    assert!(table[1].starts_with("this run ") && table[1].contains("  2 "), "{}", run.out);
    assert!(table[2].starts_with("same threads, batch 4 ") && table[2].contains('x'), "{}", run.out);
    assert!(table[3].starts_with("all cores, batch 8 ") && table[3].contains('%'), "{}", run.out);
}

#[test]
fn other_launchers_start_ranks_too() {
    let job = format!("resnet50-test-{}", std::process::id());
    let rank = |rank: &str, flags: &[&str]| {
        let set = [("HCCL_RANK", rank), ("HCCL_WORLD_SIZE", "2"), ("HCCL_JOB_ID", job.as_str())];
        support::start_with(&small(flags), &set)
    };
    let both = [rank("0", &["--steps=1"]), rank("1", &["--steps=1"])].map(support::Running::finish);
    let [first, second] = both.map(Run::succeeded);
    assert!(first.out.contains("equal on 2 ranks"), "{}", first.out);
    assert!(second.out.is_empty(), "{}", second.out);
    let both = [rank("0", &["--ranks=3"]), rank("1", &["--ranks=3"])].map(support::Running::finish);
    assert!(both.iter().all(|run| run.refused().contains("--ranks 3: the launcher has started 2")), "{}", both[0].err);
}

/// An IDX file of bytes.
fn idx(magic: u32, dims: &[u32], body: &[u8]) -> Vec<u8> {
    let header = std::iter::once(magic).chain(dims.iter().copied());
    header.flat_map(u32::to_be_bytes).chain(body.iter().copied()).collect()
}

/// A folder of IDX files: four training and four test images of 2 x 2 pixels.
fn idx_folder(dir: &Path) {
    for part in ["train", "t10k"] {
        fs::write(dir.join(format!("{part}-images-idx3-ubyte")), idx(0x803, &[4, 2, 2], &[7; 16])).unwrap();
        fs::write(dir.join(format!("{part}-labels-idx1-ubyte")), idx(0x801, &[4], &[0, 1, 2, 0])).unwrap();
    }
}

/// Refused before a rank starts, with this in the message.
#[track_caller]
fn assert_refused(flags: &[&str], parts: &[&str]) {
    let run = run(flags);
    let text = run.refused();
    assert!(parts.iter().all(|part| text.contains(part)), "{flags:?}: {text}");
    assert!(!run.out.contains("[rank") && !text.contains("[rank"), "{flags:?}: ranks were started: {text}");
}

#[test]
fn bad_flags_and_unwritable_places_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "file");
    fs::write(&file, "").unwrap();
    let below_a_file = path(dir.path(), "file/sub");
    let missing = path(dir.path(), "missing/run");
    assert_refused(&["--ranks", "0"], &["--ranks", "'0'"]);
    assert_refused(&["--ranks=2", "--dtype", "f8"], &["--dtype", "f8", "f32, f64"]);
    assert_refused(&["--ranks=3", "--train-samples=2"], &["more ranks than samples: 3 ranks, 2 samples"]);
    assert_refused(&["--ranks=2", "--train-samples=9001"], &["--train-samples 9001", "9000"]);
    assert_refused(&["--ranks=2", "--batch=1"], &["--batch 1", "BatchNorm"]);
    assert_refused(&["--ranks=2", "--checkpoint", &below_a_file], &["--checkpoint", "file/sub"]);
    assert_refused(&["--ranks=2", "--csv", &missing], &["--csv", "missing/run"]);
    assert_refused(&["--ranks=2", "--plot", &missing], &["--plot", "missing/run"]);
    assert_refused(&["--ranks=2", "--init", &missing], &["--init", "missing/run"]);
    assert_refused(&["--ranks=2", "--init", &file], &["--init", "file"]);
    assert_refused(&["--ranks=2", "--images", &missing], &["missing/run"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn bad_idx_files_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let folder = path(dir.path(), "");
    let flags = ["--ranks=2", "--data", &folder];
    assert_refused(&flags, &["no training images file", "train-images-idx3-ubyte"]);
    let cases: [(&str, Vec<u8>, &[&str]); 4] = [
        ("train-images-idx3-ubyte", idx(0x803, &[4, 2, 2], &[7; 15]), &["truncated", "32 bytes expected, 31 found"]),
        ("t10k-images-idx3-ubyte", idx(0x801, &[4, 2, 2], &[7; 16]), &["wrong magic number", "0x00000803"]),
        ("t10k-labels-idx1-ubyte", idx(0x801, &[4], &[0, 1, 3, 0]), &["class count mismatch", "label 3"]),
        ("train-labels-idx1-ubyte", idx(0x801, &[3], &[0, 1, 2]), &["4 images", "3 labels"]),
    ];
    for (name, content, parts) in cases {
        idx_folder(dir.path());
        fs::write(dir.path().join(name), content).unwrap();
        assert_refused(&flags, &[&[name], parts].concat());
    }
    idx_folder(dir.path());
    assert_refused(&["--ranks=5", "--data", &folder], &["--ranks 5", "4 for training"]);
}
