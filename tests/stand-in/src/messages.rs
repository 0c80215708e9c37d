//! Messages: each is a rendezvous, those of a batch do not wait for one another.

use std::sync::Arc;

use crate::abi::{Result, para};
use crate::comm::{Comm, Pair};
use crate::memory::Span;
use crate::run::{enqueue, read, write};
use crate::stream::Stream;

/// One message as this rank sees it.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) sends: bool,
    pub(crate) peer: u32,
    pub(crate) count: u64,
    pub(crate) kind: i32,
    pub(crate) span: Span,
}

/// Meets new peers, then enqueues the messages as one batch.
pub(crate) fn go(name: &'static str, comm: &Arc<Comm>, stream: &Arc<Stream>, messages: Vec<Message>) -> Result<()> {
    let messages: Vec<_> = messages.into_iter().filter(|message| message.count > 0).collect();
    if comm.size == 1 || messages.is_empty() {
        return Ok(());
    }
    let (own, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.peer == comm.rank);
    let copies = own_copies(&own)?;
    comm.meet_pairs(&others.iter().map(|message| met(comm.rank, message)).collect::<Vec<_>>())?;
    let spans = own.iter().chain(&others).map(|message| message.span.clone()).collect();
    enqueue(comm, stream, name, spans, move |world| {
        copies.iter().for_each(|(from, to)| to.copy_from(from));
        if others.is_empty() {
            return Ok(());
        }
        world.batch_send_recv(|batch| {
            others.iter().try_for_each(|message| {
                let peer = world.peer(message.peer as usize)?;
                match message.sends {
                    true => batch.send(read::<u8>(&message.span), peer),
                    false => batch.recv(write::<u8>(&message.span), peer),
                }
            })
        })
    })
}

/// Messages of a rank to itself, from where to where.
fn own_copies(own: &[Message]) -> Result<Vec<(Span, Span)>> {
    let side = |sends: bool| own.iter().filter(move |message| message.sends == sends);
    let fits = |(from, to): (&Message, &Message)| from.span.bytes == to.span.bytes;
    if side(true).count() != side(false).count() || !side(true).zip(side(false)).all(fits) {
        return Err(para("a rank's messages to itself have no counterpart"));
    }
    Ok(side(true).zip(side(false)).map(|(from, to)| (from.span.clone(), to.span.clone())).collect())
}

fn met(rank: u32, message: &Message) -> (Pair, String) {
    let (from, to) = if message.sends { (rank, message.peer) } else { (message.peer, rank) };
    (Pair { from, to }, format!("{from} to {to}, count {}, type {}", message.count, message.kind))
}
