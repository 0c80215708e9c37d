//! Elements seen as bytes, and as elements again.
#![expect(unsafe_code, reason = "elements are plain numbers: any bytes are one")]

use crate::element::Element;

/// The bytes of `elements`, in the order of this host.
pub(super) fn of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are numbers without padding (the table of `element` checks their sizes), bytes have no
    // alignment, and the length is that of the slice.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of `elements`, to be written.
pub(super) fn of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let bytes = size_of_val(elements);
    // SAFETY: as in `of`, and every pattern of bytes is a number of each element type.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), bytes) }
}

/// `elements` as what they are, when `T` and `U` are the same type.
pub(super) fn same<T: Element, U: Element>(elements: &[T]) -> Option<&[U]> {
    // SAFETY: each dtype belongs to one type, so that `T` is `U`.
    (T::DTYPE == U::DTYPE).then(|| unsafe { &*(std::ptr::from_ref(elements) as *const [U]) })
}

/// As [`same`], to be written.
pub(super) fn same_mut<T: Element, U: Element>(elements: &mut [T]) -> Option<&mut [U]> {
    // SAFETY: each dtype belongs to one type, so that `T` is `U`.
    (T::DTYPE == U::DTYPE).then(|| unsafe { &mut *(std::ptr::from_mut(elements) as *mut [U]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_elements() {
        let mut x = [1u16, 0x0203];
        assert_eq!(of(&x), [x[0].to_ne_bytes(), x[1].to_ne_bytes()].concat());
        of_mut(&mut x)[..2].copy_from_slice(&7u16.to_ne_bytes());
        assert_eq!(x[0], 7);
    }

    #[test]
    fn only_the_same_type_is_the_same() {
        assert_eq!(same::<f32, f32>(&[1.5]), Some(&[1.5f32][..]));
        assert_eq!(same::<f32, u32>(&[1.5]), None);
        assert!(same_mut::<half::f16, half::bf16>(&mut [half::f16::ONE]).is_none());
    }
}
