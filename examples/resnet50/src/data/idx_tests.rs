use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn images(count: u32, rows: u32, columns: u32) -> Vec<u8> {
    let header = [0x803, count, rows, columns].map(u32::to_be_bytes).concat();
    let body = (0..count * rows * columns).map(|at| (at % 251) as u8);
    header.into_iter().chain(body).collect()
}

fn labels(labels: &[u8]) -> Vec<u8> {
    [&[0x801, labels.len() as u32].map(u32::to_be_bytes).concat(), labels].concat()
}

fn zip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn read(images: &[u8], labels: &[u8]) -> Result<IdxSet, DataError> {
    IdxSet::read((Path::new("dir/images"), images), (Path::new("dir/labels"), labels))
}

/// The message of a failed reading of three images of 2 x 3 pixels.
fn message(images: &[u8]) -> String {
    read(images, &labels(&[0, 1, 2])).unwrap_err().to_string()
}

#[test]
fn a_set_is_read_plain_or_packed_under_any_of_its_names() {
    let (plain_images, plain_labels) = (images(3, 2, 3), labels(&[4, 0, 2]));
    for (gz, pack) in [("", false), (".gz", true)] {
        for dot in ["-", "."] {
            let dir = tempfile::tempdir().unwrap();
            let store = |name: String, bytes: &[u8]| {
                fs::write(dir.path().join(name), if pack { zip(bytes) } else { bytes.to_vec() }).unwrap();
            };
            store(format!("train-images{dot}idx3-ubyte{gz}"), &plain_images);
            store(format!("train-labels{dot}idx1-ubyte{gz}"), &plain_labels);
            let set = IdxSet::open(dir.path(), TRAIN).unwrap();
            assert_eq!((set.labels(), set.shape(), set.classes()), (&[4, 0, 2][..], (2, 3), 5));
            assert_eq!(set.image(1), [6, 7, 8, 9, 10, 11]);
        }
    }
}

#[test]
fn packed_bytes_are_known_without_their_name() {
    assert!(read(&zip(&images(3, 2, 3)), &labels(&[0, 1, 2])).is_ok());
}

#[test]
fn a_missing_file_is_named_with_all_names_tried() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("t10k-images-idx3-ubyte"), images(1, 1, 1)).unwrap();
    let error = IdxSet::open(dir.path(), TEST).unwrap_err();
    assert!(matches!(&error, DataError::Missing { what: "test labels", .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&dir.path().display().to_string()), "{text}");
    for name in ["t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz", "t10k-labels.idx1-ubyte"] {
        assert!(text.contains(name), "{text}");
    }
    let nowhere = IdxSet::open(&dir.path().join("no"), TRAIN).unwrap_err();
    assert!(matches!(nowhere, DataError::Missing { what: "training images", .. }));
}

#[test]
fn a_file_cut_anywhere_says_how_long_it_should_be() {
    let whole = images(3, 2, 3);
    for len in 0..whole.len() {
        let expected = if len < 16 { 16 } else { 34 };
        let text = format!("dir/images: truncated: {expected} bytes expected, {len} found");
        assert_eq!(message(&whole[..len]), text);
        assert_eq!(message(&zip(&whole[..len])), format!("{text} after decompression"));
    }
    let short = read(&whole, &labels(&[0, 1, 2])[..10]).unwrap_err().to_string();
    assert_eq!(short, "dir/labels: truncated: 11 bytes expected, 10 found");
}

#[test]
fn a_packed_file_cut_anywhere_is_an_error() {
    let whole = zip(&images(3, 2, 3));
    for len in 0..whole.len() {
        let error = read(&whole[..len], &labels(&[0, 1, 2])).unwrap_err();
        let cut = matches!(error, DataError::Truncated { .. } | DataError::Gzip { .. });
        assert!(cut || len < 2, "cut at {len}: {error}");
    }
}

#[test]
fn a_wrong_magic_number_is_shown_beside_the_right_one() {
    let text = message(&labels(&[9; 20]));
    assert_eq!(text, "dir/images: wrong magic number at offset 0: expected 0x00000803 (IDX images), found 0x00000801");
    let swapped = read(&images(3, 2, 3), &images(3, 2, 3)).unwrap_err().to_string();
    assert!(swapped.starts_with("dir/labels: wrong magic") && swapped.ends_with("found 0x00000803"), "{swapped}");
}

#[test]
fn damaged_gzip_is_told_from_a_short_file() {
    let mut damaged = zip(&images(3, 2, 3));
    let crc = damaged.len() - 8;
    damaged[crc] ^= 1;
    let error = read(&damaged, &labels(&[0, 1, 2])).unwrap_err();
    assert!(matches!(error, DataError::Gzip { offset: 34, .. }), "{error}");

    let named = (Path::new("dir/images.gz"), &b"not packed at all, only named so"[..]);
    let error = IdxSet::read(named, (Path::new("dir/labels"), &labels(&[0])[..])).unwrap_err();
    assert!(matches!(error, DataError::Gzip { offset: 0, .. }), "{error}");
    assert!(error.to_string().starts_with("dir/images.gz: bad gzip data after 0 decompressed bytes"), "{error}");
}

#[test]
fn a_file_that_goes_on_is_refused() {
    let longer = [images(3, 2, 3), vec![7]].concat();
    assert_eq!(message(&longer), "dir/images: longer than its header says: 34 bytes expected, more found");
    assert!(message(&zip(&longer)).ends_with("more found after decompression"));
}

#[test]
fn a_header_is_not_believed() {
    let huge = [0x803, u32::MAX, u32::MAX, u32::MAX].map(u32::to_be_bytes).concat();
    let text = message(&huge);
    assert!(text.contains("header promises 79228162458924105385300197375 bytes, more than the limit"), "{text}");
    // Within the limit, but the bytes are not there: an error, and no gigabytes set aside for them.
    let large = [0x803, 1 << 20, 32, 32].map(u32::to_be_bytes).concat();
    assert!(message(&large).contains("truncated: 1073741840 bytes expected, 16 found"));
}

#[test]
fn empty_sets_and_empty_images_are_refused() {
    for (count, rows, columns) in [(0, 28, 28), (3, 0, 28), (3, 28, 0)] {
        let text = message(&images(count, rows, columns));
        assert!(text.contains(&format!("header says {count} items of {rows} x {columns} pixels")), "{text}");
    }
    assert!(read(&images(1, 1, 1), &labels(&[])).is_err());
}

#[test]
fn images_and_labels_must_pair_up() {
    let error = read(&images(3, 2, 3), &labels(&[0, 1])).unwrap_err().to_string();
    assert_eq!(error, "dir/images holds 3 images, but dir/labels holds 2 labels");
}

#[test]
fn a_label_the_training_set_lacks_is_found() {
    let set = read(&images(3, 1, 1), &labels(&[0, 2, 1])).unwrap();
    set.check_labels(3).unwrap();
    let text = set.check_labels(2).unwrap_err().to_string();
    assert_eq!(
        text,
        "dir/labels: class count mismatch: label 2 at offset 9, but the training set has 2 classes (0 to 1)"
    );
}
