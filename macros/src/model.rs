//! Syntax to facts: every rule, and every message.

mod order;
mod pipeline;
mod stage;

pub(crate) use pipeline::{Kind, Pipeline, Role, Value};
pub(crate) use stage::{FunctionStage, Passes, Stage};

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::Path;

/// Many errors as one.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn at(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    /// The value, or its error kept here.
    fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    fn check<T>(self, value: Option<T>) -> syn::Result<T> {
        match (self.0, value) {
            (None, Some(value)) => Ok(value),
            (Some(error), _) => Err(error),
            (None, None) => Err(syn::Error::new(Span::call_site(), "the macro found an error and lost it")),
        }
    }
}

fn krate(path: Option<Path>) -> TokenStream {
    path.map_or_else(|| quote!(::hccl), |path| path.into_token_stream())
}
