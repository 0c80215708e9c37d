use super::*;
use sealed::{Lend, LendMut};

fn counted(len: usize) -> DeviceBuffer<i32> {
    let elements: Vec<i32> = (0..len as i32).map(|i| i * 3 + 1).collect();
    DeviceBuffer::from_slice(Device::Cpu, &elements).unwrap()
}

#[test]
fn ranges_point_into_the_buffer() {
    let mut buf = counted(10);
    let whole = buf.read().memory;
    let view = buf.range(3..=5).unwrap().read().memory;
    assert_eq!(view.ptr, whole.ptr.wrapping_add(12));
    assert_eq!(view.bytes, 12);
    let (crate::backend::Home::Heap { offset: a, .. }, crate::backend::Home::Heap { offset: b, .. }) =
        (whole.home, view.home)
    else {
        panic!("a device buffer lives in the heap");
    };
    assert_eq!(b, a + 12);
    assert_eq!(buf.range_mut(10..).unwrap().write().len, 0);
    let (start, end) = (4, 3);
    for error in [buf.range(..11).unwrap_err(), buf.range(start..end).unwrap_err(), buf.range(11..).unwrap_err()] {
        assert!(error.to_string().contains("buffer of 10 elements"), "{error}");
    }
    assert!(buf.range(..=usize::MAX).is_err());
}

#[test]
fn copies_check_the_length() {
    let mut buf = counted(4);
    let error = buf.copy_from_slice(&[9, 9, 9]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Length { expected: 4, actual: 3, .. }), "{error}");
    assert_eq!(buf.to_vec().unwrap(), [1, 4, 7, 10]);
    let copy = buf.try_clone().unwrap();
    buf.fill(5).unwrap();
    assert_eq!(copy.as_slice(), Some(&[1, 4, 7, 10][..]));
    assert_eq!(buf.as_mut_slice(), Some(&mut [5; 4][..]));
}

#[test]
fn a_retired_range_moves_the_buffer_and_keeps_the_rest() {
    let mut buf = counted(6);
    let before = buf.read().memory.ptr;
    buf.range_mut(2..4).unwrap().retire();
    assert_ne!(buf.read().memory.ptr, before);
    let after = buf.to_vec().unwrap();
    assert_eq!((&after[..2], &after[4..]), (&[1, 4][..], &[13, 16][..]));
}

#[test]
fn refuses_what_memory_cannot_hold() {
    let error = DeviceBuffer::<f64>::zeros(Device::Cpu, usize::MAX / 4).unwrap_err();
    assert!(error.to_string().contains("f64"), "{error}");
    assert!(DeviceBuffer::<u8>::zeros(Device::Cpu, 0).unwrap().is_empty());
}
