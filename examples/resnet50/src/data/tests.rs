use std::fs;

use super::*;

fn built_in() -> Data {
    Data::load(&Place::BuiltIn, None).unwrap()
}

fn counts(set: &Dataset, classes: usize) -> Vec<usize> {
    let mut counts = vec![0; classes];
    for index in 0..set.len() {
        counts[set.get(index).unwrap().1 as usize] += 1;
    }
    counts
}

/// IDX files of `count` images of 2 x 2 pixels, the labels counting up to `classes`.
fn store_idx(dir: &Path, prefix: &str, count: u32, classes: u32) {
    let header = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let pixels: Vec<u8> = (0..4 * count).map(|at| at as u8).collect();
    let labels: Vec<u8> = (0..count).map(|at| (at % classes) as u8).collect();
    fs::write(dir.join(format!("{prefix}-images-idx3-ubyte")), [header(&[0x803, count, 2, 2]), pixels].concat())
        .unwrap();
    fs::write(dir.join(format!("{prefix}-labels-idx1-ubyte")), [header(&[0x801, count]), labels].concat()).unwrap();
}

#[test]
fn the_built_in_set_is_split_evenly() {
    let data = built_in();
    assert_eq!((data.train.len(), data.test.len(), data.classes.len()), (9000, 1000, 10));
    assert_eq!(counts(&data.train, 10), [900; 10]);
    assert_eq!(counts(&data.test, 10), [100; 10]);
    let (train, test) = (&data.train.source, &data.test.source);
    let (Source::Idx { picked: train, .. }, Source::Idx { picked: test, .. }) = (train, test) else {
        panic!("not an IDX set")
    };
    let mut both = [train.as_slice(), test].concat();
    both.sort_unstable();
    assert_eq!(both, (0..10_000).collect::<Vec<_>>());
    assert!(train.is_sorted() && test.is_sorted());
}

#[test]
fn the_built_in_images_are_padded_and_grey() {
    let data = built_in();
    assert_eq!(data.train.image_size(), 32);
    // The first stored image is an ankle boot.
    let (image, label) = data.train.get(0).unwrap();
    assert_eq!((image.len(), data.classes[label as usize].as_str()), (3 * 32 * 32, "Ankle boot"));
    let planes: Vec<&[u8]> = image.chunks(1024).collect();
    assert!(planes[0] == planes[1] && planes[1] == planes[2]);
    assert!(planes[0][..64].iter().all(|pixel| *pixel == 0) && planes[0].iter().any(|pixel| *pixel > 200));
}

#[test]
fn every_tenth_of_a_class_is_held_out() {
    let labels: Vec<u8> = (0..60).map(|at| at % 3).collect();
    let (train, test) = hold_out(&labels);
    assert_eq!(test, [27, 28, 29, 57, 58, 59]);
    assert_eq!(train.len(), 54);
}

#[test]
fn a_batch_holds_the_normalized_pixels_in_either_type() {
    let data = Data::load(&Place::BuiltIn, Some(40)).unwrap();
    let normalizer = Normalizer::from_moments([(0.25, 0.5), (0.5, 0.25), (0.0, 1.0)]);
    let indices = [8999, 3, 3];
    let (images, labels) = data.train.batch(&indices, &normalizer, DType::F64).unwrap();
    assert_eq!(images.dims(), [3, 3, 40, 40]);
    let values = images.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let labels = labels.to_vec1::<u32>().unwrap();
    for (at, index) in indices.into_iter().enumerate() {
        let (image, label) = data.train.get(index).unwrap();
        assert_eq!(labels[at], label);
        for (i, pixel) in image.iter().enumerate() {
            assert_eq!(values[at * 4800 + i], normalizer.apply(i / 1600, *pixel));
        }
    }
    let (half, _) = data.train.batch(&indices, &normalizer, DType::F32).unwrap();
    let rounded: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    assert_eq!(half.flatten_all().unwrap().to_vec1::<f32>().unwrap(), rounded);
}

#[test]
fn mean_std_gives_the_training_set_mean_0_and_deviation_1() {
    let dir = tempfile::tempdir().unwrap();
    store_idx(dir.path(), "train", 50, 5);
    store_idx(dir.path(), "t10k", 10, 5);
    let data = Data::load(&Place::Idx(dir.path().into()), Some(3)).unwrap();
    let normalizer = Normalizer::new(Normalize::MeanStd, &data.train).unwrap();
    let all: Vec<usize> = (0..50).collect();
    let values = data.train.batch(&all, &normalizer, DType::F64).unwrap().0.flatten_all().unwrap();
    let values = values.to_vec1::<f64>().unwrap();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    assert!(mean.abs() < 1e-12 && (variance - 1.0).abs() < 1e-12, "{mean} {variance}");
    let plain = Normalizer::new(Normalize::None, &data.train).unwrap();
    assert_eq!([0, 51, 255].map(|pixel| plain.apply(1, pixel)), [0.0, 0.2, 1.0]);
}

#[test]
fn an_empty_batch_has_a_shape() {
    let data = built_in();
    let normalizer = Normalizer::from_moments([(0.0, 1.0); 3]);
    let (images, labels) = data.test.batch(&[], &normalizer, DType::F32).unwrap();
    assert_eq!((images.dims(), labels.dims()), (&[0, 3, 32, 32][..], &[0][..]));
}

#[test]
fn idx_files_keep_their_own_split() {
    let dir = tempfile::tempdir().unwrap();
    store_idx(dir.path(), "train", 50, 5);
    store_idx(dir.path(), "t10k", 10, 5);
    let data = Data::load(&Place::Idx(dir.path().into()), None).unwrap();
    assert_eq!((data.train.len(), data.test.len(), data.train.image_size()), (50, 10, 32));
    assert_eq!(data.classes, ["0", "1", "2", "3", "4"]);
    assert_eq!(
        Data::load(&Place::Idx(dir.path().into()), Some(2)).unwrap().test.get(9).unwrap(),
        ([36, 37, 38, 39].repeat(3), 4)
    );
}

#[test]
fn a_test_set_with_more_classes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    store_idx(dir.path(), "train", 50, 5);
    store_idx(dir.path(), "t10k", 12, 6);
    let text = Data::load(&Place::Idx(dir.path().into()), None).unwrap_err().to_string();
    assert!(text.contains("t10k-labels-idx1-ubyte: class count mismatch: label 5 at offset 13"), "{text}");
}

#[test]
fn image_folders_become_sets() {
    let dir = tempfile::tempdir().unwrap();
    for (class, name) in [(0u8, "cat"), (1, "dog")] {
        fs::create_dir(dir.path().join(name)).unwrap();
        for n in 0..10u8 {
            let path = dir.path().join(format!("{name}/{n}.png"));
            image::RgbImage::from_pixel(5, 5, image::Rgb([class, n, 9])).save(path).unwrap();
        }
    }
    let data = Data::load(&Place::Images(dir.path().into()), None).unwrap();
    assert_eq!((data.train.len(), data.test.len(), data.train.image_size()), (18, 2, 64));
    assert_eq!(data.classes, ["cat", "dog"]);
    assert_eq!(counts(&data.train, 2), [9, 9]);
}

#[test]
fn sizes_ranks_samples_and_types_out_of_range_are_refused() {
    for size in [0, MAX_IMAGE_SIZE + 1] {
        for place in [Place::BuiltIn, Place::Idx("nowhere".into()), Place::Images("nowhere".into())] {
            let text = Data::load(&place, Some(size)).unwrap_err().to_string();
            assert_eq!(text, format!("--image-size {size}: must be 1 to 2048 pixels"));
        }
    }
    let data = built_in();
    data.check_ranks(9000).unwrap();
    let text = data.check_ranks(9001).unwrap_err().to_string();
    assert_eq!(text, "--ranks 9001: more ranks than samples, the built-in set has 9000 for training");
    assert!(matches!(data.test.get(1000), Err(DataError::Index { index: 1000, len: 1000 })));
    let normalizer = Normalizer::from_moments([(0.0, 1.0); 3]);
    let error = data.test.batch(&[0], &normalizer, DType::F16).unwrap_err();
    assert_eq!(error.to_string(), "--dtype f16: images come as f32 or f64");
}
