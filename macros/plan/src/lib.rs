//! Pipelines planned before they run: who computes what, who sends what, in an order that cannot deadlock.
//!
//! ```text
//! one_f_one_b: 2 ranks, 3 microbatches, 12 ticks; idle 25.0 % of the time (33.3 % of the work)
//! rank 0 |F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
//! rank 1 |.  F0 B0 B0 F1 B1 B1 F2 B2 B2
//! a column is 1 tick; F forward, B backward; . waits, = transfers
//! no time lost to blocking messages
//! ```
//!
//! - A [`Plan`] lists for each rank, in order, what to compute, send and receive. It is made from a [`Schedule`], the
//!   number of ranks and microbatches, and [`Costs`].
//! - Every plan ends on a transport that buffers nothing, where a send waits for its receive. The lists are parts of
//!   one order of the whole pipeline, so they can't deadlock, and each plan is then run on a virtual clock that proves
//!   it.
//! - On every stage each microbatch passes forward once and, in training, backward once, and only after its input is
//!   there.
//! - A [`Channel`] is one direction of one edge, and a [`Message`] says its channel and microbatch, so that a gradient
//!   is never taken for an activation.
//! - Costs place messages and draw pictures. A plan ends in the same order, whatever the work takes in the end.
//! - The same arguments give the same plan on every rank; [`Plan::digest`] compares them.
//!
//! ```
//! use hccl_plan::{Costs, Plan, Schedule};
//!
//! let plan = Plan::new(Schedule::OneFOneB, 4, 8, Costs::new(1, 1, 1))?; // ticks: forward, backward, weight part
//! assert_eq!(plan.timeline().makespan(), 33); // 8 microbatches of 3 ticks, and 3 more until the pipeline is full
//! assert_eq!(plan.timeline().bubble().of_ideal(), 3.0 / 8.0); // idle time over work
//! assert_eq!(plan.timeline().bubble().of_total(), 3.0 / 11.0); // idle time over all time
//! assert_eq!([0, 1, 2, 3].map(|rank| plan.peak_activations(rank)), [4, 3, 2, 1]); // GPipe: 8 everywhere
//! assert_eq!(plan.loss().ticks(), 0); // as fast as with buffers
//! print!("{}", plan.to_text()); // and `to_svg` for a picture
//! # Ok::<(), hccl_plan::PlanError>(())
//! ```
//!
//! # Time and memory
//!
//! `p` ranks, `m` microbatches, `v` stages a rank; `F`, `B` and `W` are the ticks that one *stage* takes for the
//! forward pass, the input part and the weight part of the backward pass. The bubble is the time in which a rank does
//! not work, in a step that begins and ends together on all ranks. Activations are counted in stages, on the rank that
//! holds most.
//!
//! | schedule | bubble | activations | microbatches |
//! | --- | --- | --- | --- |
//! | [`GPipe`](Schedule::GPipe) | `(p-1)(F+B+W)` | `m` | any |
//! | [`OneFOneB`](Schedule::OneFOneB) | `(p-1)(F+B+W)` | `min(p, m)` | any |
//! | [`Interleaved`](Schedule::Interleaved) | `(p-1)(F+B+W)`, of stages `v` times as short | `(v+1)p-1`, at most `vm` | multiples of `p` |
//! | [`ZbH1`](Schedule::ZbH1) | `(p-1)(F+B-W)`, for `W` up to `F` and `B`, and `m >= p` | `min(p, m)` | any |
//! | [`ZbV`](Schedule::ZbV) | `(p-1)F`, of stages half as long, for `F = B = W` and `m >= 2p-1` | `2p`, at most `2m` | any |
//! | [`FillDrain`](Flow::FillDrain) | `(p-1)F` | 1 | any |
//! | [`Ring`](Flow::Ring), `r` rounds | `(p-1)F`, and `(r-1)(p-m)F` if `m < p` | 1 | any |
//!
//! [`Schedule::formula`] computes the makespan that follows, and says `None` where no formula is valid. What these
//! numbers are not:
//!
//! - A longer weight part helps `zb_h1` no further: each rank then adds the longer of `F` and `B`, in which it fills
//!   or empties.
//! - They assume equal stages and free messages. [`Plan::retimed`] gives the times of unequal stages,
//!   [`Costs::transfer`] counts messages: both ranks are then busy, for nothing is sent in the background, and the
//!   loss can be large. 1F1B waits for more hops than GPipe; prefer it for its memory, not for its time.
//! - Two ratios are called "bubble": idle time over work (Megatron-LM and zero-bubble papers) and over all time (GPipe
//!   paper). [`Bubble`] has both.
//! - "Zero bubble" counts from a rank's first work to its last. On a clock that all ranks share some bubble remains,
//!   as the table says, and anything that waits for all ranks before the optimizer's step, such as clipping by the
//!   global norm, pays it.
//! - Where messages can't be placed without cost, [`Plan::loss`] says how much longer the plan takes than the same
//!   order of work with buffers. With three equal costs and free messages nothing is lost in any schedule on up to 8
//!   ranks with up to 4 microbatches a rank (a test says so), and GPipe, 1F1B and inference lose nothing at any equal
//!   stages; `interleaved`, `zb_h1` and `zb_v` lose some at unequal costs.
//! - Activations count from the forward pass to the end of the backward pass, its weight part included. Messages that
//!   were received early come on top: [`Plan::peak_messages`].
//!
//! Sources: GPipe (Huang et al., arXiv 1811.06965); 1F1B with a flush and interleaving (Narayanan et al., Efficient
//! Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, arXiv 2104.04473), its memory (Korthikanti
//! et al., Reducing Activation Recomputation in Large Transformer Models, arXiv 2205.05198); ZB-H1 and ZB-V (Qi et
//! al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, and Pipeline Parallelism with Controllable Memory, arXiv
//! 2405.15362). The ring and the bounds on `m` were measured on this module's clock, and its tests hold them.
//!
//! # Plans by hand
//!
//! [`Plan::from_work`] places messages for an order of work of your own; [`Plan::by_hand`] takes messages too, and
//! refuses what can't end. In textbook 1F1B a rank receives just before it computes; without buffers that hangs:
//!
//! ```
//! use hccl_plan::{Costs, Plan, PlanError, Schedule};
//!
//! let plan = Plan::new(Schedule::OneFOneB, 2, 2, Costs::default())?;
//! let mut actions: Vec<_> = (0..2).map(|rank| plan.actions(rank).to_vec()).collect();
//! actions[1][2..5].rotate_left(1); // rank 1 receives microbatch 1 after the backward pass of 0, not before
//! let error = Plan::by_hand(Schedule::OneFOneB, 2, 2, Costs::default(), actions).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "deadlock: rank 0, action 3 (send the activation of microbatch 1 over edge 0) waits for rank 1; \
//!      rank 1, action 3 (send the gradient of microbatch 0 over edge 0) waits for rank 0 \
//!      (hint: without buffers a send ends when it is received; reorder one of these actions)"
//! );
//! let refused = Plan::new(Schedule::Interleaved { chunks: 2 }, 4, 6, Costs::default()).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "interleaved(2) on 4 ranks cannot run 6 microbatches (hint: use 4 or 8, a multiple of 4)"
//! );
//! # Ok::<(), PlanError>(())
//! ```
//!
//! This crate only plans: it knows no communicator, reads and writes nothing, and depends on the standard library
//! alone. `hccl::pipeline` runs its plans, and re-exports it; the macros of `hccl` check theirs with it while they expand.

mod check;
mod picture;
mod plan;
mod project;
mod schedule;
mod simulate;
#[cfg(test)]
mod tests;

pub use check::{Blocked, PlanError};
pub use plan::{Action, Channel, Costs, Direction, Loss, Message, Phase, Plan, Work};
pub use schedule::{Flow, Schedule};
pub use simulate::{Bubble, Span, Timeline};
