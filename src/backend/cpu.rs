//! The CPU engine: ranks of one host, as threads or as processes.

pub(crate) mod heap;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use std::sync::Arc;

/// A group of `n` ranks that are threads of this process: one backend a rank, in rank order.
pub(crate) fn threads(n: usize, options: &Options) -> Result<Vec<Arc<dyn Backend>>> {
    let _ = options;
    Err(Error::new(ErrorKind::Unsupported { what: format!("{n} ranks") }))
}
