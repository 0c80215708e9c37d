//! The seam through which synchronised BatchNorm talks to the other ranks.

use candle_core::Result;

/// Adds small vectors over all ranks of a group: what synchronised BatchNorm needs from a communicator.
///
/// The contract:
///
/// * Every rank of the group calls with the same length in the same order; afterwards `values[i]` is on every rank the
///   sum of all ranks' `values[i]`, with the **same bits** on every rank. (Running statistics stay equal because of
///   that.)
/// * The order of calls follows from the model alone. In the forward pass it is the order in which the layers run. In
///   the backward pass candle walks the graph in reverse topological order, which depends on the graph's shape and on
///   nothing else, so ranks that run the same model on batches of any sizes make the same calls. A rank must not skip a
///   backward pass that another makes.
/// * A call runs on the thread that called the layer or `backward()`, outside every parallel section of this crate, and may
///   block: twice per layer in the forward pass (sums, then centred squares, which is what makes the variance accurate)
///   and once in the backward pass. Do not train on a rayon worker that other ranks' work shares: blocking it starves
///   them.
///
/// ```
/// use hccl_candle::nn::StatsReduce;
///
/// struct Alone; // a group of one rank
/// impl StatsReduce for Alone {
///     fn all_reduce_sum(&self, _values: &mut [f64]) -> candle_core::Result<()> {
///         Ok(())
///     }
/// }
/// let mut sums = [3.0, 4.0];
/// Alone.all_reduce_sum(&mut sums)?;
/// assert_eq!(sums, [3.0, 4.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait StatsReduce: Send + Sync {
    /// Replaces each value by its sum over all ranks.
    ///
    /// # Errors
    /// Whatever the communication reports; the layer's forward or backward pass returns it.
    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<()>;
}
