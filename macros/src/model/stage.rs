//! What `#[stage]` may stand on, and what the functions there take and give.

use super::{Errors, krate};
use crate::parse::StageArguments;
use proc_macro2::{Span, TokenStream};
use syn::spanned::Spanned;
use syn::{
    FnArg, GenericArgument, Generics, Ident, ImplItem, ImplItemFn, ItemFn, ItemImpl, PathArguments, ReturnType,
    Signature, Type,
};

/// A stage: its type and what its functions take and give.
pub(crate) struct Stage {
    pub(crate) krate: TokenStream,
    pub(crate) generics: Generics,
    pub(crate) ty: Type,
    pub(crate) forward: Function,
    pub(crate) input: Type,
    pub(crate) output: Type,
    pub(crate) passes: Passes,
    pub(crate) release: bool,
}

/// The passes that a stage has beside the forward one.
#[expect(clippy::large_enum_variant, reason = "one a stage, while the macro runs")]
pub(crate) enum Passes {
    Forward,
    Backward { saved: Type },
    Split { saved: Type, queued: Type, whole: bool },
}

/// How a function of a stage is called.
pub(crate) struct Function {
    pub(crate) name: Ident,
    /// Takes a [`Pass`] before its input.
    pub(crate) takes_pass: bool,
    pub(crate) returns: Span,
}

/// A function that is a stage.
pub(crate) struct FunctionStage {
    pub(crate) krate: TokenStream,
    pub(crate) visibility: syn::Visibility,
    pub(crate) name: Ident,
    pub(crate) function: Function,
    pub(crate) input: Type,
    pub(crate) output: Type,
}

impl Stage {
    pub(crate) fn check(arguments: StageArguments, item: &ItemImpl) -> syn::Result<Stage> {
        let mut errors = Errors::default();
        if let Some((_, path, _)) = &item.trait_ {
            errors.at(path.span(), "put `#[stage]` on the inherent `impl` block, the one without a trait");
        }
        if let Some(name) = &arguments.name {
            errors.at(name.span(), "`name` is for functions: an `impl` block is named by its type");
        }
        let find = |name: &str| {
            item.items.iter().find_map(|item| match item {
                ImplItem::Fn(function) if function.sig.ident == name => Some(function),
                _ => None,
            })
        };
        let functions = Functions {
            backward: find("backward"),
            input: find("backward_input"),
            weight: find("backward_weight"),
            release: find("release"),
        };
        let Some(forward) = find("forward") else {
            errors.at(
                item.self_ty.span(),
                "a stage needs `fn forward(&self, input: In) -> Result<Out>`, \
                 and to be trained also `backward(&mut self, saved: Saved, grad: Grad<Out>) -> Result<Grad<In>>`",
            );
            return errors.check(None);
        };
        let parts = functions.parts(forward, &mut errors);
        let stage = parts.map(|(function, input, output, passes)| Stage {
            krate: krate(arguments.krate),
            generics: item.generics.clone(),
            ty: (*item.self_ty).clone(),
            forward: function,
            input,
            output,
            passes,
            release: functions.release.is_some(),
        });
        errors.check(stage)
    }
}

/// The functions of a stage beside `forward`.
struct Functions<'a> {
    backward: Option<&'a ImplItemFn>,
    input: Option<&'a ImplItemFn>,
    weight: Option<&'a ImplItemFn>,
    release: Option<&'a ImplItemFn>,
}

impl Functions<'_> {
    fn parts(&self, forward: &ImplItemFn, errors: &mut Errors) -> Option<(Function, Type, Type, Passes)> {
        for function in [self.backward, self.input, self.weight, self.release].into_iter().flatten() {
            errors.keep(method(&function.sig));
        }
        errors.keep(method(&forward.sig))?;
        let (function, input) = errors.keep(entry(&forward.sig))?;
        let returned = errors.keep(success(&forward.sig))?;
        let output = match (self.backward, self.input, self.weight) {
            (None, None, None) => Some((returned, Passes::Forward)),
            (Some(_), None, None) => {
                errors.keep(pair(&returned, SAVED)).map(|(out, saved)| (out, Passes::Backward { saved }))
            }
            (whole, Some(input), Some(_)) => {
                let both = errors.keep(pair(&returned, SAVED));
                let split = errors.keep(success(&input.sig)).and_then(|ty| errors.keep(pair(&ty, QUEUED)));
                both.zip(split)
                    .map(|((out, saved), (_, queued))| (out, Passes::Split { saved, queued, whole: whole.is_some() }))
            }
            (_, Some(half), None) => {
                errors.at(
                    half.sig.ident.span(),
                    "`backward_input` needs `backward_weight(&mut self, queued: Queued)` beside it",
                );
                None
            }
            (_, None, Some(half)) => {
                errors.at(
                    half.sig.ident.span(),
                    "`backward_weight` needs `backward_input` beside it, which returns `Result<(Grad<In>, Queued)>`",
                );
                None
            }
        };
        output.map(|(output, passes)| (function, input, output, passes))
    }
}

const SAVED: &str = "`forward` of a stage with a backward pass returns `Result<(Out, Saved)>`: \
                     what the backward pass needs goes beside the output";
const QUEUED: &str =
    "`backward_input` returns `Result<(Grad<In>, Queued)>`: what `backward_weight` needs goes beside the gradient";

impl FunctionStage {
    pub(crate) fn check(arguments: StageArguments, item: &ItemFn) -> syn::Result<FunctionStage> {
        let mut errors = Errors::default();
        if !item.sig.generics.params.is_empty() {
            errors.at(
                item.sig.generics.span(),
                "a stage made of a function has no generics: use a struct and an `impl` block",
            );
        }
        let both = errors.keep(plain(&item.sig)).and_then(|()| errors.keep(entry(&item.sig)));
        let output = errors.keep(success(&item.sig));
        let stage = both.zip(output).map(|((function, input), output)| FunctionStage {
            krate: krate(arguments.krate),
            visibility: item.vis.clone(),
            name: arguments.name.unwrap_or_else(|| camel_case(&item.sig.ident)),
            function,
            input,
            output,
        });
        errors.check(stage)
    }
}

/// `to_hidden` as `ToHidden`.
fn camel_case(name: &Ident) -> Ident {
    let text: String = name
        .to_string()
        .split('_')
        .flat_map(|word| word.chars().take(1).flat_map(char::to_uppercase).chain(word.chars().skip(1)))
        .collect();
    Ident::new(&text, name.span())
}

fn plain(signature: &Signature) -> syn::Result<()> {
    let refused = signature.asyncness.map(|token| (token.span(), "async"));
    match refused.or_else(|| signature.unsafety.map(|token| (token.span(), "unsafe"))) {
        Some((span, what)) => Err(syn::Error::new(span, format!("a stage's functions cannot be {what}"))),
        None => Ok(()),
    }
}

fn method(signature: &Signature) -> syn::Result<()> {
    plain(signature)?;
    match signature.receiver() {
        Some(receiver) if receiver.reference.is_some() => Ok(()),
        Some(receiver) => {
            Err(syn::Error::new(receiver.span(), "take `&self` or `&mut self`: a stage works on many microbatches"))
        }
        None => {
            let message = format!("`{}` of a stage takes `&self` or `&mut self` first", signature.ident);
            Err(syn::Error::new(signature.ident.span(), message))
        }
    }
}

/// How the forward function is called, and the type of its input.
fn entry(signature: &Signature) -> syn::Result<(Function, Type)> {
    let typed = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(&*typed.ty),
        FnArg::Receiver(_) => None,
    });
    let typed: Vec<&Type> = typed.collect();
    let (takes_pass, input) = match typed[..] {
        [input] => (false, input),
        [_, input] => (true, input),
        _ => {
            let message = format!("`{}` takes its input, and before it, if it likes, a `Pass`", signature.ident);
            return Err(syn::Error::new(signature.ident.span(), message));
        }
    };
    let returns = match &signature.output {
        ReturnType::Type(_, ty) => ty.span(),
        ReturnType::Default => signature.ident.span(),
    };
    Ok((Function { name: signature.ident.clone(), takes_pass, returns }, input.clone()))
}

/// `T` of `Result<T>`, `Result<T, E>` and of aliases of them.
fn success(signature: &Signature) -> syn::Result<Type> {
    let wrong = |span: Span| {
        let message = format!(
            "`{}` of a stage returns `Result<…>`, of any error: `hccl::Result<Out>`, `StageResult<Out>`, \
             `Result<Out, MyError>`",
            signature.ident
        );
        Err(syn::Error::new(span, message))
    };
    let ReturnType::Type(_, ty) = &signature.output else { return wrong(signature.ident.span()) };
    let Type::Path(path) = &**ty else { return wrong(ty.span()) };
    let Some(segment) = path.path.segments.last() else { return wrong(ty.span()) };
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return wrong(ty.span()) };
    match arguments.args.first() {
        Some(GenericArgument::Type(ty)) if segment.ident.to_string().ends_with("Result") => Ok(ty.clone()),
        _ => wrong(ty.span()),
    }
}

fn pair(ty: &Type, message: &str) -> syn::Result<(Type, Type)> {
    if let Type::Tuple(tuple) = ty
        && let (Some(first), Some(second), 2) = (tuple.elems.first(), tuple.elems.get(1), tuple.elems.len())
    {
        return Ok((first.clone(), second.clone()));
    }
    Err(syn::Error::new(ty.span(), message))
}
