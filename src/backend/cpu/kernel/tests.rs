//! Every type, operation and instruction set against rules written a second time, bit for bit.

#![expect(unsafe_code, reason = "calls the kernels, which take raw pointers")]

mod reference;

use super::*;
use reference::{expected, sample};

/// Moves every pointer off alignment by its own number of bytes.
struct Buffer {
    bytes: Vec<u8>,
    shift: usize,
    len: usize,
}

impl Buffer {
    const GUARD: usize = 64;

    fn new(content: &[u8], shift: usize) -> Buffer {
        let mut bytes = vec![0xa5; content.len() + shift + 2 * Self::GUARD];
        bytes[Self::GUARD + shift..][..content.len()].copy_from_slice(content);
        Buffer { bytes, shift, len: content.len() }
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[Self::GUARD + self.shift..].as_mut_ptr()
    }

    /// The content, after a check that nothing around it was written.
    fn content(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(Self::GUARD + self.shift);
        let (content, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&b| b == 0xa5), "wrote outside the output");
        content
    }
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::COMPILED.iter().copied().filter(|isa| isa.available())
}

fn operations(dtype: DType) -> impl Iterator<Item = OpKind> {
    OpKind::ALL.iter().copied().filter(move |&op| op != OpKind::Avg || dtype.is_float())
}

fn inputs(dtype: DType, ranks: usize, elements: usize) -> Vec<Vec<u8>> {
    (0..ranks).map(|rank| sample(dtype, rank, ranks, elements)).collect()
}

/// Reduces with outputs apart from the sources, and compares every output.
fn check(isa: Isa, dtype: DType, op: OpKind, inputs: &[Vec<u8>], outputs: usize, hint: Hint, shift: usize) {
    let bytes = inputs[0].len();
    let mut sources: Vec<_> = inputs.iter().enumerate().map(|(i, x)| Buffer::new(x, (shift * (i + 3)) % 67)).collect();
    let mut results: Vec<_> = (0..outputs).map(|i| Buffer::new(&vec![0x11; bytes], (shift * (i + 1)) % 71)).collect();
    let from: Vec<*const u8> = sources.iter_mut().map(|b| b.ptr().cast_const()).collect();
    let to: Vec<*mut u8> = results.iter_mut().map(Buffer::ptr).collect();
    let elements = bytes / dtype.size();
    let call = Call { sources: &from, outputs: &to, elements, ranks: inputs.len(), hint };
    // SAFETY: live buffers of `elements` elements, all apart; `isa` is available.
    unsafe { reduce_with_isa(isa, dtype, op, &call) };
    let want = expected(dtype, op, inputs);
    for (i, result) in results.iter().enumerate() {
        assert_same(dtype, result.content(), &want, || {
            format!("{isa:?} {dtype} {op} {} sources, output {i} of {outputs}, {hint:?}, shift {shift}", inputs.len())
        });
    }
    for (source, input) in sources.iter().zip(inputs) {
        assert_eq!(source.content(), input, "a source was written");
    }
}

fn assert_same(dtype: DType, got: &[u8], want: &[u8], context: impl Fn() -> String) {
    if got != want {
        let size = dtype.size();
        let at = got.chunks(size).zip(want.chunks(size)).position(|(g, w)| g != w);
        let i = at.unwrap_or(usize::MAX);
        let (g, w) = (&got[i * size..][..size], &want[i * size..][..size]);
        panic!("{}: element {i} of {}: got {g:02x?}, want {w:02x?}", context(), got.len() / size);
    }
}

fn for_all(mut f: impl FnMut(Isa, DType, OpKind)) {
    for isa in isas() {
        for &dtype in DType::ALL {
            operations(dtype).for_each(|op| f(isa, dtype, op));
        }
    }
}

#[test]
fn every_type_operation_and_isa_matches_the_reference() {
    let block = |dtype: DType| run::BLOCK_LINES * lane::LINE / dtype.size();
    for ranks in [1, 2, 3, 5] {
        for_all(|isa, dtype, op| {
            let block = block(dtype);
            for elements in [block - 1, block, block + 1, 2 * block + 77] {
                let inputs = inputs(dtype, ranks, elements);
                for (outputs, hint) in [(1, Hint::Cached), (2, Hint::Cached), (3, Hint::Cached), (2, Hint::Stream)] {
                    check(isa, dtype, op, &inputs, outputs, hint, elements % 5);
                }
            }
        });
    }
}

#[test]
fn short_lengths_at_every_alignment() {
    for_all(|isa, dtype, op| {
        for elements in 0..=70 {
            for ranks in [1, 2, 3] {
                let inputs = inputs(dtype, ranks, elements);
                check(isa, dtype, op, &inputs, 2, Hint::Cached, elements);
                check(isa, dtype, op, &inputs, 1, Hint::Stream, elements + 1);
            }
        }
    });
}

#[test]
fn in_place_outputs_are_the_sources() {
    for_all(|isa, dtype, op| {
        for ranks in [1, 2, 3, 5] {
            for hint in [Hint::Cached, Hint::Stream] {
                let inputs = inputs(dtype, ranks, 3000 / dtype.size() + 5);
                let mut buffers: Vec<_> = inputs.iter().enumerate().map(|(i, x)| Buffer::new(x, 7 * i)).collect();
                let to: Vec<*mut u8> = buffers.iter_mut().map(Buffer::ptr).collect();
                let from: Vec<*const u8> = to.iter().map(|p| p.cast_const()).collect();
                let elements = inputs[0].len() / dtype.size();
                let call = Call { sources: &from, outputs: &to, elements, ranks, hint };
                // SAFETY: live buffers; every output equals one source; `isa` is available.
                unsafe { reduce_with_isa(isa, dtype, op, &call) };
                let want = expected(dtype, op, &inputs);
                for buffer in &buffers {
                    assert_same(dtype, buffer.content(), &want, || format!("{isa:?} {dtype} {op} {ranks} in place"));
                }
            }
        }
    });
}

/// Every f16 and bf16 through the conversions (a sum with −0 changes only NaN), and every pair of special values.
#[test]
fn all_halves_survive_and_specials_meet() {
    for isa in isas() {
        for dtype in [DType::F16, DType::BF16] {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let minus_zero: Vec<u8> = (0..=u16::MAX).flat_map(|_| 0x8000u16.to_le_bytes()).collect();
            let multiplier: Vec<u8> =
                (0..=u16::MAX).map(|i| i.wrapping_mul(40503)).flat_map(u16::to_le_bytes).collect();
            for op in operations(dtype) {
                check(isa, dtype, op, &[all.clone(), minus_zero.clone()], 1, Hint::Cached, 0);
                check(isa, dtype, op, &[all.clone(), multiplier.clone()], 1, Hint::Cached, 0);
            }
        }
        for &dtype in DType::ALL {
            let special = reference::specials(dtype);
            let n = special.len();
            let a: Vec<u8> = (0..n * n).flat_map(|i| special[i / n].clone()).collect();
            let b: Vec<u8> = (0..n * n).flat_map(|i| special[i % n].clone()).collect();
            for op in operations(dtype) {
                check(isa, dtype, op, &[a.clone(), b.clone()], 2, Hint::Cached, 1);
                check(isa, dtype, op, &[b.clone(), a.clone(), b.clone()], 1, Hint::Cached, 1);
            }
        }
    }
}

#[test]
fn one_source_keeps_the_bits_of_a_nan() {
    for isa in isas() {
        for op in operations(DType::F32) {
            let source: Vec<u8> = [0xffa0_1234u32, 0x7f80_0001, 1].iter().flat_map(|b| b.to_le_bytes()).collect();
            let mut output = Buffer::new(&[0; 12], 1);
            let call = Call {
                sources: &[source.as_ptr()],
                outputs: &[output.ptr()],
                elements: 3,
                ranks: 1,
                hint: Hint::Cached,
            };
            // SAFETY: live buffers of three elements, apart; `isa` is available.
            unsafe { reduce_with_isa(isa, DType::F32, op, &call) };
            assert_eq!(output.content(), source, "{isa:?} {op}");
        }
    }
}

/// `Avg` divides by the ranks it is told, not by the sources it sees.
#[test]
fn avg_uses_the_given_number_of_ranks() {
    for isa in isas() {
        let source: Vec<u8> = [6f32, -10.0, 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut output = Buffer::new(&[0; 12], 0);
        let call =
            Call { sources: &[source.as_ptr()], outputs: &[output.ptr()], elements: 3, ranks: 4, hint: Hint::Cached };
        // SAFETY: live buffers of three elements, apart; `isa` is available.
        unsafe { reduce_with_isa(isa, DType::F32, OpKind::Avg, &call) };
        let want: Vec<u8> = [1.5f32, -2.5, 0.25].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(output.content(), want, "{isa:?}");
    }
}

#[test]
fn copies_of_every_length_and_alignment() {
    for isa in isas() {
        for bytes in (0..200).chain([4095, 4096, 4097, 10_000]) {
            for hint in [Hint::Cached, Hint::Stream] {
                let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + bytes) as u8).collect();
                let mut source = Buffer::new(&content, bytes % 13);
                let mut output = Buffer::new(&vec![0; bytes], bytes % 64);
                // SAFETY: live buffers of `bytes` bytes, apart; `isa` is available.
                unsafe { copy_with_isa(isa, source.ptr(), output.ptr(), bytes, hint) };
                assert_eq!(output.content(), content, "{isa:?} {hint:?} {bytes} bytes");
                let same = source.ptr();
                // SAFETY: the same live buffer twice, which is allowed; `isa` is available.
                unsafe { copy_with_isa(isa, same, same, bytes, hint) };
                assert_eq!(source.content(), content);
            }
        }
    }
}

#[test]
#[should_panic(expected = "avg of i32")]
fn an_average_of_integers_is_refused() {
    let (a, mut b) = ([1i32, 2], [0i32; 2]);
    let sources = [a.as_ptr().cast(); 2];
    let outputs = [b.as_mut_ptr().cast()];
    // SAFETY: live arrays of two elements, apart.
    unsafe { reduce_chunk(DType::I32, OpKind::Avg, &sources, &outputs, 2, 2, Hint::Cached) };
}

#[test]
fn the_detected_isa_is_available() {
    assert!(Isa::detect().available());
    assert_eq!(Some(Isa::detect()), isas().last());
}
