//! Tokens to syntax. No opinions: what is there, and where.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Ident, LitInt, LitStr, Path, Token, Type, Visibility, braced, parenthesized, token};

/// The arguments of `#[stage(…)]`.
#[derive(Default)]
pub(crate) struct StageArguments {
    /// `crate = "…"`.
    pub(crate) krate: Option<Path>,
    /// `name = …`, for functions.
    pub(crate) name: Option<Ident>,
}

impl Parse for StageArguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = StageArguments::default();
        while !input.is_empty() {
            if input.peek(Token![crate]) {
                arguments.krate = Some(krate(input)?);
            } else {
                let key: Ident = input.parse()?;
                if key != "name" {
                    let message = format!(
                        "no argument `{key}`: `#[stage]` takes `crate = \"path\"` and, on functions, `name = Name`"
                    );
                    return Err(syn::Error::new(key.span(), message));
                }
                input.parse::<Token![=]>()?;
                arguments.name = Some(input.parse()?);
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
    }
}

/// `crate = "path"`.
fn krate(input: ParseStream<'_>) -> syn::Result<Path> {
    input.parse::<Token![crate]>()?;
    input.parse::<Token![=]>()?;
    input.parse::<LitStr>()?.parse()
}

/// The whole of `pipeline! { … }`.
pub(crate) struct Pipeline {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) name: Ident,
    pub(crate) stages: Vec<StageUse>,
    pub(crate) settings: Vec<Setting>,
}

/// `Name: path::Type * count`.
pub(crate) struct StageUse {
    pub(crate) name: Option<Ident>,
    pub(crate) ty: Type,
    pub(crate) count: Option<Expr>,
}

/// `key = value;`, each with the span of its key.
#[expect(clippy::large_enum_variant, reason = "a few a declaration, while the macro runs")]
pub(crate) enum Setting {
    Schedule(Span, Schedule),
    Feedback(Span, Feedback),
    Grad(Span, Ident),
    Costs(Span, Vec<LitInt>),
    Order(Span, Vec<RankOrder>),
    Crate(Span, Path),
    Unknown(Ident),
}

/// `one_f_one_b(microbatches = 8)`, `interleaved(2, microbatches = 8)`.
pub(crate) struct Schedule {
    pub(crate) name: Ident,
    pub(crate) arguments: Vec<(Option<Ident>, Expr)>,
}

/// `Last => First: Type`.
pub(crate) struct Feedback {
    pub(crate) from: Ident,
    pub(crate) to: Ident,
    pub(crate) ty: Type,
}

/// `rank 0 { F0, send F0, recv B0, B0 }`.
pub(crate) struct RankOrder {
    pub(crate) rank: LitInt,
    pub(crate) actions: Vec<OrderAction>,
}

/// One action of an order by hand; words such as `F0` are not looked into.
pub(crate) enum OrderAction {
    Compute(Ident),
    Send(Ident),
    Recv(Ident),
    Swap(Ident, Ident),
}

impl Parse for Pipeline {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        input.parse::<Token![struct]>().map_err(|error| {
            syn::Error::new(error.span(), "a pipeline is declared as `struct Name = First => Second => Third;`")
        })?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let stages = Punctuated::<StageUse, Token![=>]>::parse_separated_nonempty(input)?.into_iter().collect();
        input.parse::<Token![;]>()?;
        let mut settings = Vec::new();
        while !input.is_empty() {
            settings.push(input.parse()?);
        }
        Ok(Pipeline { attributes, visibility, name, stages, settings })
    }
}

impl Parse for StageUse {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        // `Name: Type`, but not the `Name::` of a path.
        let named = input.peek(Ident) && input.peek2(Token![:]) && !input.peek2(Token![::]);
        let name = if named { Some((input.parse::<Ident>()?, input.parse::<Token![:]>()?).0) } else { None };
        let ty = input.parse()?;
        let count = if input.parse::<Option<Token![*]>>()?.is_some() { Some(count(input)?) } else { None };
        Ok(StageUse { name, ty, count })
    }
}

/// A literal, `_`, a path or an expression in parentheses: what can stand before `=>`.
fn count(input: ParseStream<'_>) -> syn::Result<Expr> {
    if input.peek(token::Paren) {
        let inner;
        parenthesized!(inner in input);
        return inner.parse();
    }
    if input.peek(Token![_]) {
        return Ok(Expr::Infer(syn::ExprInfer { attrs: Vec::new(), underscore_token: input.parse()? }));
    }
    if input.peek(LitInt) {
        return Ok(Expr::Lit(syn::ExprLit { attrs: Vec::new(), lit: input.parse()? }));
    }
    Ok(Expr::Path(syn::ExprPath { attrs: Vec::new(), qself: None, path: input.parse()? }))
}

impl Parse for Setting {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(Token![crate]) {
            let span = input.span();
            let path = krate(input)?;
            input.parse::<Token![;]>()?;
            return Ok(Setting::Crate(span, path));
        }
        let key: Ident = input.parse()?;
        let span = key.span();
        if key == "order" {
            return order(input).map(|order| Setting::Order(span, order));
        }
        input.parse::<Token![=]>()?;
        let setting = match key.to_string().as_str() {
            "schedule" => Setting::Schedule(span, input.parse()?),
            "feedback" => Setting::Feedback(span, input.parse()?),
            "grad" => Setting::Grad(span, input.parse()?),
            "costs" => {
                let inner;
                parenthesized!(inner in input);
                let costs = Punctuated::<LitInt, Token![,]>::parse_terminated(&inner)?;
                Setting::Costs(span, costs.into_iter().collect())
            }
            _ => {
                // To the end of it, so that what follows is read too.
                while !input.is_empty() && !input.peek(Token![;]) {
                    input.parse::<proc_macro2::TokenTree>()?;
                }
                Setting::Unknown(key)
            }
        };
        input.parse::<Token![;]>()?;
        Ok(setting)
    }
}

impl Parse for Schedule {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        let mut arguments = Vec::new();
        if input.peek(token::Paren) {
            let inner;
            parenthesized!(inner in input);
            while !inner.is_empty() {
                let named = inner.peek(Ident) && inner.peek2(Token![=]) && !inner.peek2(Token![==]);
                let key = if named { Some((inner.parse::<Ident>()?, inner.parse::<Token![=]>()?).0) } else { None };
                arguments.push((key, inner.parse()?));
                if !inner.is_empty() {
                    inner.parse::<Token![,]>()?;
                }
            }
        }
        Ok(Schedule { name, arguments })
    }
}

impl Parse for Feedback {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let from = input.parse()?;
        input.parse::<Token![=>]>()?;
        let to = input.parse()?;
        input.parse::<Token![:]>()?;
        Ok(Feedback { from, to, ty: input.parse()? })
    }
}

/// `order { rank 0 { … } rank 1 { … } }`
fn order(input: ParseStream<'_>) -> syn::Result<Vec<RankOrder>> {
    let inner;
    braced!(inner in input);
    let mut ranks = Vec::new();
    while !inner.is_empty() {
        let word: Ident = inner.parse()?;
        if word != "rank" {
            return Err(syn::Error::new(word.span(), "an order lists ranks: `rank 0 { F0, send F0, recv B0, B0 }`"));
        }
        let rank = inner.parse()?;
        let list;
        braced!(list in inner);
        let actions = Punctuated::<OrderAction, Token![,]>::parse_terminated(&list)?.into_iter().collect();
        ranks.push(RankOrder { rank, actions });
    }
    let _ = input.parse::<Option<Token![;]>>()?;
    Ok(ranks)
}

impl Parse for OrderAction {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let word: Ident = input.parse()?;
        match word.to_string().as_str() {
            "send" => Ok(OrderAction::Send(input.parse()?)),
            "recv" => Ok(OrderAction::Recv(input.parse()?)),
            "swap" => Ok(OrderAction::Swap(input.parse()?, input.parse()?)),
            _ => Ok(OrderAction::Compute(word)),
        }
    }
}

impl OrderAction {
    pub(crate) fn span(&self) -> Span {
        match self {
            OrderAction::Compute(word) | OrderAction::Send(word) | OrderAction::Recv(word) => word.span(),
            OrderAction::Swap(word, _) => word.span(),
        }
    }
}
