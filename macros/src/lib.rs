//! The macros of `hccl`, which re-exports them: `hccl::stage` and `hccl::pipeline`. Their pages are there.
//!
//! ```text
//! tokens --parse--> syntax --model--> facts --expand--> tokens
//!                             |
//!                             +-- every rule and message; plans are checked with hccl-plan
//! ```
//!
//! - `parse` knows the grammar and no rule; `model` knows every rule and no token of the result; `expand` cannot fail.
//! - Errors stand at the user's tokens, all of them at once, and an item with an error is emitted as it was written.
//! - Generated paths begin with `::hccl`, or with what `crate = "…"` says.

mod expand;
mod model;
mod parse;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Makes an `impl` block a stage of a pipeline. `hccl::stage` has the page.
#[proc_macro_attribute]
pub fn stage(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::stage_or_errors(arguments.into(), item.into()).into()
}

/// Declares a pipeline. `hccl::pipeline!` has the page.
#[proc_macro]
pub fn pipeline(input: TokenStream) -> TokenStream {
    expand::pipeline_or_errors(input.into()).into()
}
