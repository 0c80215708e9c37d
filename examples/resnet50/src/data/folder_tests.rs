use std::collections::BTreeSet;
use std::fs;

use image::{Rgb, RgbImage, Rgba, RgbaImage};
use tempfile::TempDir;

use super::*;

/// A PNG of one colour; every image of a test has its own.
fn store(path: &Path, colour: [u8; 3]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(4, 4, Rgb(colour)).save(path).unwrap();
}

/// Classes `a`, `b`, … with so many images, coloured (class, number, 7).
fn folder(counts: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (class, count) in (0u8..).zip(counts) {
        let name = char::from(b'a' + class).to_string();
        fs::create_dir_all(dir.path().join(&name)).unwrap();
        (0..*count).for_each(|n| store(&dir.path().join(&name).join(format!("{n}.png")), [class, n, 7]));
    }
    dir
}

fn all(folder: &Folder) -> Vec<(Vec<u8>, u32)> {
    let read = |index| {
        let mut image = vec![0; 3 * folder.size * folder.size];
        let label = folder.read(index, &mut image).unwrap();
        (image, label)
    };
    (0..folder.len()).map(read).collect()
}

/// (class by colour, number) of every image, after checking its label.
fn seen(folder: &Folder) -> Vec<(u8, u8)> {
    let check = |(image, label): (Vec<u8>, u32)| {
        let plane = image.len() / 3;
        assert_eq!(u32::from(image[0]), label);
        assert!(image[2 * plane..].iter().all(|blue| *blue == 7));
        (image[0], image[plane])
    };
    all(folder).into_iter().map(check).collect()
}

#[test]
fn a_tenth_of_each_class_is_kept_back_by_name() {
    let dir = folder(&[20, 5, 34, 1]);
    let (train, test, names) = Folder::open(dir.path(), 4).unwrap();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let of_class = |folder: &Folder, class| seen(folder).iter().filter(|image| image.0 == class).count();
    assert_eq!([0, 1, 2, 3].map(|class| of_class(&test, class)), [2, 1, 3, 0]);
    assert_eq!([0, 1, 2, 3].map(|class| of_class(&train, class)), [18, 4, 31, 1]);
    let both: BTreeSet<_> = seen(&train).into_iter().chain(seen(&test)).collect();
    assert_eq!(both.len(), 60);

    let copy = folder(&[20, 5, 34, 1]);
    let (_, again, _) = Folder::open(copy.path(), 4).unwrap();
    assert_eq!(seen(&again), seen(&test));
}

/// Pinned: another split would change every run on such a folder.
#[test]
fn the_hash_is_pinned() {
    assert_eq!(hash("cat", Path::new("x/1.png")), 0xbe6f_1fdb_f722_e82a);
    assert_ne!(hash("a", Path::new("x/1.png")), hash("b", Path::new("x/1.png")));
    assert_eq!(hash("a", Path::new("x/1.png")), hash("a", Path::new("y/1.png")));
}

#[test]
fn a_folder_may_split_itself() {
    for test_name in ["test", "val"] {
        let dir = tempfile::tempdir().unwrap();
        for (class, name) in [(0, "cat"), (1, "dog")] {
            (0..3).for_each(|n| store(&dir.path().join(format!("train/{name}/{n}.png")), [class, n, 7]));
            store(&dir.path().join(format!("{test_name}/{name}/9.PNG")), [class, 9, 7]);
        }
        let (train, test, names) = Folder::open(dir.path(), 2).unwrap();
        assert_eq!(names, ["cat", "dog"]);
        assert_eq!(seen(&train), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!(seen(&test), [(0, 9), (1, 9)]);
    }
}

#[test]
fn other_entries_are_passed_over() {
    let dir = folder(&[3, 3]);
    fs::write(dir.path().join("README.md"), "two classes").unwrap();
    fs::create_dir(dir.path().join(".cache")).unwrap();
    fs::write(dir.path().join("a/notes.txt"), "no image").unwrap();
    fs::write(dir.path().join("a/._0.png"), "no image").unwrap();
    store(&dir.path().join("a/deeper/0.png"), [9, 9, 9]);
    let (train, test, names) = Folder::open(dir.path(), 4).unwrap();
    assert_eq!((names.len(), train.len() + test.len()), (2, 6));
}

#[test]
fn transparency_and_jpeg_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        fs::create_dir(dir.path().join(class)).unwrap();
        let clear = RgbaImage::from_pixel(4, 4, Rgba([1, 2, 3, 0]));
        (0..2).for_each(|n| clear.save(dir.path().join(format!("{class}/{n}.png"))).unwrap());
        RgbImage::from_pixel(16, 16, Rgb([200, 200, 200])).save(dir.path().join(format!("{class}/2.jpeg"))).unwrap();
    }
    let (train, test, _) = Folder::open(dir.path(), 4).unwrap();
    let colours: BTreeSet<u8> =
        all(&train).into_iter().chain(all(&test)).flat_map(|(image, _)| image).map(|p| p / 4).collect();
    assert_eq!(colours, BTreeSet::from([200 / 4, 255 / 4]));
}

#[test]
fn kept_in_memory_or_not_makes_no_difference() {
    let dir = folder(&[4, 4]);
    let (files, _, _) = split(dir.path()).unwrap();
    let (cached, lazy) = (Folder::new(files.clone(), 3, CACHE).unwrap(), Folder::new(files, 3, 10).unwrap());
    assert!(cached.cache.is_some() && lazy.cache.is_none());
    assert_eq!(all(&cached), all(&lazy));
}

#[test]
fn a_bad_image_is_named_while_loading_or_when_read() {
    let dir = folder(&[4, 4]);
    let bad = dir.path().join("b/2.png");
    let whole = fs::read(&bad).unwrap();
    for content in [&whole[..whole.len() / 2], b"GIF89a", b""] {
        fs::write(&bad, content).unwrap();
        let error = Folder::open(dir.path(), 4).unwrap_err();
        assert!(matches!(error, DataError::Decode { .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("{}: cannot decode image: ", bad.display())), "{error}");
    }
    let lazy = Folder::new(vec![(bad, 1)], 4, 0).unwrap();
    assert!(matches!(lazy.read(0, &mut [0; 48]), Err(DataError::Decode { .. })));
    let gone = Folder::new(vec![(dir.path().join("b/77.png"), 1)], 4, 0).unwrap();
    assert!(matches!(gone.read(0, &mut [0; 48]), Err(DataError::Io { .. })));
}

#[test]
fn folders_without_classes_are_refused() {
    let error = |dir: &Path| Folder::open(dir, 4).unwrap_err();
    let empty = folder(&[]);
    assert!(matches!(error(empty.path()), DataError::NoClasses { found: 0, .. }));
    let single = folder(&[5]);
    let text = error(single.path()).to_string();
    assert!(text.ends_with("expected one folder a class, at least 2, found 1"), "{text}");
    assert!(matches!(error(&single.path().join("missing")), DataError::Io { .. }));
    let hollow = folder(&[5, 0]);
    let text = error(hollow.path()).to_string();
    assert!(text.starts_with(&format!("{}: class without images", hollow.path().join("b").display())), "{text}");
    let tiny = folder(&[1, 1]);
    assert!(matches!(error(tiny.path()), DataError::NoTest { .. }));
}

#[test]
fn training_and_test_must_have_the_same_classes() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["train/cat/0.png", "train/dog/0.png", "test/cat/0.png", "test/cow/0.png", "test/dog/0.png"] {
        store(&dir.path().join(path), [0, 0, 0]);
    }
    let text = Folder::open(dir.path(), 4).unwrap_err().to_string();
    assert!(text.starts_with("class count mismatch: ") && text.contains("train has 2 classes"), "{text}");
    assert!(text.ends_with("test has 3; only in one of them: cow"), "{text}");
}
