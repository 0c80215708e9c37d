//! How ranks find each other.

use crate::backend::{Backend, cpu};
use crate::error::{Error, Result};
use crate::options::Options;
use std::sync::Arc;

/// The world that the environment describes: of one rank when nothing launched this process.
pub(crate) fn connect(options: &Options) -> Result<Arc<dyn Backend>> {
    let mut backends = cpu::threads(1, options)?;
    backends.pop().ok_or_else(|| Error::invalid("a world of no ranks"))
}
