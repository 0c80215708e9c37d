//! Tensors as messages: a header with shape and dtype, an answer, then the values.
//!
//! ```text
//! sender                          receiver
//! header: dtype, axes, dims  -->
//!                            <--  answer: taken, or refused and what would be
//! values                     -->  (only when taken)
//! ```
//!
//! The answer is what lets both sides fail together and leaves the communicator in step.

use super::tensor_of;
use crate::error::{Error, Result};
use crate::storage::{self, Elem, Visit, VisitMut};
use candle_core::{DType, Tensor};
use half::{bf16, f16};
use hccl::{Axis, Communicator, Peer};

/// The most axes that a tensor sent as a message may have.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use hccl_candle::{TensorCollectives, tensor::MAX_DIMS};
/// let refused = hccl_candle::local(2, |comm| {
///     let x = Tensor::zeros(vec![1; MAX_DIMS + 1], DType::U8, &Device::Cpu)?;
///     Ok(comm.send_tensor(&x, comm.peer(1 - comm.rank().index())?).is_err())
/// })?;
/// assert_eq!(refused, [true, true]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub const MAX_DIMS: usize = 8;

/// `[mark, dtype, axes, limit, dims…]`, always of this length.
const WORDS: usize = 4 + MAX_DIMS;
const MARK: u64 = 0x6863_636c_7431_0001;
const ANY: u64 = u64::MAX;

/// What a message holds, or what a receiver takes.
#[derive(Clone, Debug, PartialEq)]
struct Header {
    dtype: Option<DType>,
    dims: Vec<usize>,
    /// The most bytes taken; 0 in a message.
    limit: u64,
}

/// Dtypes by their code on the wire.
const CODES: [DType; 9] =
    [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64];

impl Header {
    fn of(op: &'static str, tensor: &Tensor) -> Result<Header> {
        storage::check_device(op, tensor)?;
        storage::check_dtype(op, tensor.dtype())?;
        if tensor.rank() > MAX_DIMS {
            let problem = format!("{} axes, at most {MAX_DIMS} can be sent", tensor.rank());
            return Err(Error::Shape { op, problem });
        }
        Ok(Header { dtype: Some(tensor.dtype()), dims: tensor.dims().to_vec(), limit: 0 })
    }

    fn encode(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let code = self.dtype.and_then(|dtype| CODES.iter().position(|&known| known == dtype));
        words[..4].copy_from_slice(&[MARK, code.map_or(ANY, |code| code as u64), self.dims.len() as u64, self.limit]);
        for (word, &dim) in words[4..].iter_mut().zip(&self.dims) {
            *word = dim as u64;
        }
        words
    }

    fn decode(op: &'static str, words: &[u64; WORDS]) -> Result<Header> {
        let axes = words[2] as usize;
        if words[0] != MARK || axes > MAX_DIMS || (words[1] != ANY && words[1] as usize >= CODES.len()) {
            let problem = "the peer sent something other than a tensor, or another version of this library";
            return Err(Error::Shape { op, problem: problem.into() });
        }
        let dims = words[4..4 + axes].iter().map(|&dim| dim as usize).collect();
        let dtype = CODES.get(words[1] as usize).copied();
        Ok(Header { dtype, dims, limit: words[3] })
    }

    /// Bytes of the values; `None` when they are more than can be counted.
    fn bytes(&self) -> Option<u64> {
        let size = self.dtype.map_or(0, |dtype| dtype.size_in_bytes()) as u64;
        self.dims.iter().try_fold(size, |bytes, &dim| bytes.checked_mul(dim as u64))
    }

    fn describe(&self) -> String {
        match self.dtype {
            Some(dtype) => format!("{dtype:?}{:?}", self.dims),
            None => format!("any tensor of at most {} bytes", self.limit),
        }
    }

    fn takes(&self, message: &Header) -> bool {
        match self.dtype {
            Some(_) => self.dtype == message.dtype && self.dims == message.dims,
            None => message.bytes().is_some_and(|bytes| bytes <= self.limit),
        }
    }
}

pub(super) fn send<A: Axis>(comm: &Communicator<A>, tensor: &Tensor, to: Peer<A>) -> Result<()> {
    let op = "send_tensor";
    let header = Header::of(op, tensor)?;
    comm.send(&header.encode(), to)?;
    let mut answer = [0; WORDS];
    comm.recv(&mut answer, to)?;
    let taken = Header::decode(op, &answer)?;
    if !taken.takes(&header) {
        return Err(Error::Message { op, message: header.describe(), expected: taken.describe() });
    }
    storage::read(op, tensor, Send { comm, to })
}

pub(super) fn recv<A: Axis>(comm: &Communicator<A>, from: Peer<A>, max_bytes: usize) -> Result<Tensor> {
    let wanted = Header { dtype: None, dims: Vec::new(), limit: max_bytes as u64 };
    let message = agree(comm, "recv_tensor", &wanted, from)?;
    match message.dtype {
        Some(DType::U8) => fresh::<u8, A>(comm, message, from),
        Some(DType::U32) => fresh::<u32, A>(comm, message, from),
        Some(DType::I16) => fresh::<i16, A>(comm, message, from),
        Some(DType::I32) => fresh::<i32, A>(comm, message, from),
        Some(DType::I64) => fresh::<i64, A>(comm, message, from),
        Some(DType::BF16) => fresh::<bf16, A>(comm, message, from),
        Some(DType::F16) => fresh::<f16, A>(comm, message, from),
        Some(DType::F32) => fresh::<f32, A>(comm, message, from),
        Some(DType::F64) => fresh::<f64, A>(comm, message, from),
        // `decode` gives no other dtype; a message without one is a receiver's answer in the wrong place.
        Some(_) | None => {
            let problem = "the peer answered where it should have sent".into();
            Err(Error::Shape { op: "recv_tensor", problem })
        }
    }
}

pub(super) fn recv_into<A: Axis>(comm: &Communicator<A>, tensor: &Tensor, from: Peer<A>) -> Result<()> {
    let op = "recv_tensor_into";
    let wanted = Header::of(op, tensor)?;
    if tensor.layout().has_internal_overlap() {
        let problem = "a broadcast view cannot be written (hint: call `contiguous`)".into();
        return Err(Error::Shape { op, problem });
    }
    agree(comm, op, &wanted, from)?;
    storage::write(op, tensor, Receive { comm, from })
}

/// Takes the header and answers it; the header when it fits.
fn agree<A: Axis>(comm: &Communicator<A>, op: &'static str, wanted: &Header, from: Peer<A>) -> Result<Header> {
    let mut words = [0; WORDS];
    comm.recv(&mut words, from)?;
    let message = Header::decode(op, &words)?;
    comm.send(&wanted.encode(), from)?;
    match wanted.takes(&message) {
        true => Ok(message),
        false => Err(Error::Message { op, message: message.describe(), expected: wanted.describe() }),
    }
}

/// The lengths of all ranks' first axes, once everything else is known to be equal.
pub(super) fn gather_lengths<A: Axis>(comm: &Communicator<A>, dtype: DType, dims: &[usize]) -> Result<Vec<usize>> {
    let own = Header { dtype: Some(dtype), dims: dims.to_vec(), limit: 0 };
    // Any number of axes: the header's fixed length would not do.
    let mut bytes = own.encode()[..4].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    bytes.extend(dims.iter().flat_map(|&dim| (dim as u64).to_le_bytes()));
    let all = comm.all_gather_bytes(&bytes)?;
    let words = |rank: usize| -> Vec<u64> {
        let chunks = all[rank].chunks_exact(8);
        chunks.map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]])).collect()
    };
    let first = words(0);
    let mut lengths = Vec::with_capacity(all.len());
    for rank in 0..all.len() {
        let theirs = words(rank);
        let same = theirs.len() == first.len() && theirs[..3] == first[..3] && theirs[5..] == first[5..];
        if !same {
            let detail = format!("rank 0 has {}, rank {rank} has {}", describe(&first), describe(&theirs));
            let what = "tensors to be gathered (dtype and all axes but the first must be equal)";
            return Err(Error::Mismatch { what, detail });
        }
        lengths.push(theirs.get(4).map_or(0, |&length| length as usize));
    }
    Ok(lengths)
}

fn describe(words: &[u64]) -> String {
    let dtype = words.get(1).and_then(|&code| CODES.get(code as usize));
    format!("{:?}{:?}", dtype.unwrap_or(&DType::U8), words.get(4..).unwrap_or_default())
}

fn fresh<T: Elem, A: Axis>(comm: &Communicator<A>, message: Header, from: Peer<A>) -> Result<Tensor> {
    let mut values = vec![T::zero(); message.dims.iter().product()];
    comm.recv(&mut values, from)?;
    tensor_of(values, message.dims)
}

struct Send<'a, A: Axis> {
    comm: &'a Communicator<A>,
    to: Peer<A>,
}

impl<A: Axis> Visit for Send<'_, A> {
    type Out = ();

    fn visit<T: Elem>(self, values: &[T]) -> Result<()> {
        Ok(self.comm.send(values, self.to)?)
    }
}

struct Receive<'a, A: Axis> {
    comm: &'a Communicator<A>,
    from: Peer<A>,
}

impl<A: Axis> VisitMut for Receive<'_, A> {
    type Out = ();

    fn visit<T: Elem>(self, values: &mut [T]) -> Result<()> {
        Ok(self.comm.recv(values, self.from)?)
    }
}
