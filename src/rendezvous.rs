//! How the ranks of a job find each other.

pub(crate) mod environment;
