//! Facts to tokens. Nothing here can fail.

use crate::model::{FunctionStage, Kind, Passes, Pipeline, Role, Stage, Value};
use crate::parse::{self, StageArguments};
use hccl_plan::{Action, Direction, Message, Phase, Work};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Item, ItemFn};

/// What `#[stage]` makes of its item: the item, and what is generated or what is wrong.
pub(crate) fn stage_or_errors(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let original = item.clone();
    let generated = syn::parse2::<StageArguments>(arguments).and_then(|arguments| match syn::parse2::<Item>(item)? {
        Item::Impl(item) => Stage::check(arguments, &item).map(|model| stage(&model)),
        Item::Fn(item) => FunctionStage::check(arguments, &item).map(|model| function_stage(&model, &item)),
        other => Err(syn::Error::new(other.span(), "`#[stage]` goes on an `impl` block or a function")),
    });
    let generated = generated.unwrap_or_else(|error| error.to_compile_error());
    quote!(#original #generated)
}

/// What `pipeline!` makes of its input.
pub(crate) fn pipeline_or_errors(input: TokenStream) -> TokenStream {
    let model = syn::parse2::<parse::Pipeline>(input).and_then(Pipeline::check);
    model.map_or_else(|error| error.to_compile_error(), |model| pipeline(&model))
}

/// The trait of a stage, implemented by calling the functions of the `impl` block.
pub(crate) fn stage(model: &Stage) -> TokenStream {
    let Stage { krate, generics, ty, forward, input, output, .. } = model;
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let pass = forward.takes_pass.then(|| quote!(pass,));
    let name = &forward.name;
    let call = quote_spanned! { forward.returns =>
        <#ty>::#name(self, #pass input).map_err(::core::convert::Into::into)
    };
    let release = release(model);
    let own = match &model.passes {
        Passes::Forward => quote! {
            impl #impl_generics #krate::pipeline::Stage for #ty #where_clause {
                type In = #input;
                type Out = #output;

                fn forward(
                    &mut self,
                    pass: #krate::pipeline::Pass,
                    input: Self::In,
                ) -> #krate::pipeline::StageResult<Self::Out> {
                    let _ = pass;
                    #call
                }

                #release
            }
        },
        Passes::Backward { saved } => {
            let backward = call_backward(model, "backward", quote!(saved, grad));
            let rest = quote! {
                fn backward(
                    &mut self,
                    saved: Self::Saved,
                    grad: #krate::pipeline::Grad<Self::Out>,
                ) -> #krate::pipeline::StageResult<#krate::pipeline::Grad<Self::In>> {
                    #backward
                }
            };
            train(model, saved, &call, &rest)
        }
        Passes::Split { saved, queued, whole } => split(model, saved, queued, *whole, &call),
    };
    quote! {
        const _: () = {
            #[automatically_derived]
            #[allow(clippy::useless_conversion)]
            #own
        };
    }
}

fn release(model: &Stage) -> Option<TokenStream> {
    let ty = &model.ty;
    model.release.then(|| {
        quote! {
            fn release(&mut self, slot: usize) {
                <#ty>::release(self, slot);
            }
        }
    })
}

fn call_backward(model: &Stage, name: &str, arguments: TokenStream) -> TokenStream {
    let (ty, name) = (&model.ty, Ident::new(name, Span::call_site()));
    quote!(<#ty>::#name(self, #arguments).map_err(::core::convert::Into::into))
}

fn train(model: &Stage, saved: &syn::Type, call: &TokenStream, rest: &TokenStream) -> TokenStream {
    let Stage { krate, generics, ty, input, output, .. } = model;
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let release = release(model);
    quote! {
        impl #impl_generics #krate::pipeline::Train for #ty #where_clause {
            type In = #input;
            type Out = #output;
            type Saved = #saved;

            fn forward(
                &mut self,
                pass: #krate::pipeline::Pass,
                input: Self::In,
            ) -> #krate::pipeline::StageResult<(Self::Out, Self::Saved)> {
                let _ = pass;
                #call
            }

            #rest

            #release
        }
    }
}

fn split(model: &Stage, saved: &syn::Type, queued: &syn::Type, whole: bool, call: &TokenStream) -> TokenStream {
    let Stage { krate, generics, ty, .. } = model;
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let both = quote! {
        let (grad, queued) = #krate::pipeline::SplitTrain::backward_input(self, saved, grad)?;
        #krate::pipeline::SplitTrain::backward_weight(self, queued)?;
        ::core::result::Result::Ok(grad)
    };
    let backward = if whole { call_backward(model, "backward", quote!(saved, grad)) } else { both };
    let rest = quote! {
        fn backward(
            &mut self,
            saved: Self::Saved,
            grad: #krate::pipeline::Grad<Self::Out>,
        ) -> #krate::pipeline::StageResult<#krate::pipeline::Grad<Self::In>> {
            #backward
        }

        fn into_chunk(self) -> #krate::pipeline::IntoChunk {
            #krate::pipeline::IntoChunk::split(self)
        }
    };
    let train = train(model, saved, call, &rest);
    let input = call_backward(model, "backward_input", quote!(saved, grad));
    let weight = call_backward(model, "backward_weight", quote!(queued));
    quote! {
        #train

        #[automatically_derived]
        #[allow(clippy::useless_conversion)]
        impl #impl_generics #krate::pipeline::SplitTrain for #ty #where_clause {
            type Queued = #queued;

            fn backward_input(
                &mut self,
                saved: Self::Saved,
                grad: #krate::pipeline::Grad<Self::Out>,
            ) -> #krate::pipeline::StageResult<(#krate::pipeline::Grad<Self::In>, Self::Queued)> {
                #input
            }

            fn backward_weight(&mut self, queued: Self::Queued) -> #krate::pipeline::StageResult<()> {
                #weight
            }
        }
    }
}

/// A type that stands for the function.
pub(crate) fn function_stage(model: &FunctionStage, item: &ItemFn) -> TokenStream {
    let FunctionStage { krate, visibility, name, function, input, output } = model;
    let doc = format!("The stage that `{}` is.", item.sig.ident);
    let (call, pass) = (&function.name, function.takes_pass.then(|| quote!(pass,)));
    let call = quote_spanned! { function.returns => #call(#pass input).map_err(::core::convert::Into::into) };
    quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, Debug, Default)]
        #visibility struct #name;

        #[automatically_derived]
        #[allow(clippy::useless_conversion)]
        impl #krate::pipeline::Stage for #name {
            type In = #input;
            type Out = #output;

            fn forward(
                &mut self,
                pass: #krate::pipeline::Pass,
                input: Self::In,
            ) -> #krate::pipeline::StageResult<Self::Out> {
                let _ = pass;
                #call
            }
        }
    }
}

/// The pipeline: a type with functions, and the enum of its roles.
pub(crate) fn pipeline(model: &Pipeline) -> TokenStream {
    let Pipeline { krate, attributes, visibility, name, stages, .. } = model;
    let roles = format_ident!("{name}Role");
    let variants = stages.iter().map(|Role { name, ty, .. }| {
        let doc = format!("This rank holds `{name}`.");
        quote!(#[doc = #doc] #name(#krate::pipeline::At<'p, #ty>))
    });
    let role_doc = format!("A stage of [`{name}`] that this rank holds, with the proof that it does.");
    let (known, plan, build) = (known(model), plan(model), build(model, &roles));
    quote! {
        #(#attributes)*
        #[derive(Clone, Copy, Debug)]
        #visibility struct #name;

        #[doc = #role_doc]
        #[allow(dead_code)]
        #[derive(Debug)]
        #visibility enum #roles<'p> {
            #(#variants),*
        }

        #[allow(dead_code)]
        impl #name {
            #known
            #plan
            #build
        }
    }
}

/// Constants of a plan that was checked while the macro ran.
fn known(model: &Pipeline) -> Option<TokenStream> {
    let known = model.known.as_ref()?;
    let (ranks, digest, visibility) = (known.ranks, known.digest, &model.visibility);
    let doc = format!("Ranks of the pipeline.\n\n```text\n{}```", known.picture);
    Some(quote! {
        #[doc = #doc]
        #visibility const RANKS: usize = #ranks;

        /// The digest of the plan, checked while this was compiled.
        #visibility const DIGEST: u64 = #digest;
    })
}

/// The arguments of the generated functions for the numbers that are `_`.
fn given(model: &Pipeline) -> (TokenStream, TokenStream) {
    let what = if model.kind == Kind::Ring { "slots" } else { "microbatches" };
    let all = [(&model.microbatches, what), (&model.rounds, "rounds")];
    let names = all.iter().filter(|(value, _)| value.is_given()).map(|(_, name)| Ident::new(name, Span::call_site()));
    let names: Vec<Ident> = names.collect();
    (quote!(#(#names: usize,)*), quote!(#(#names,)*))
}

fn value(value: &Value, name: &str) -> TokenStream {
    match value {
        Value::Literal(value) => quote!(#value),
        Value::Expr(expr) => quote_spanned!(expr.span() => { let number: usize = #expr; number }),
        Value::Given(_) => {
            let name = Ident::new(name, Span::call_site());
            quote!(#name)
        }
    }
}

fn schedule(model: &Pipeline) -> TokenStream {
    let krate = &model.krate;
    let (chunks, rounds) = (value(&model.chunks, "chunks"), value(&model.rounds, "rounds"));
    let schedule = quote!(#krate::pipeline::Schedule);
    match model.kind {
        Kind::GPipe => quote!(#schedule::GPipe),
        Kind::OneFOneB => quote!(#schedule::OneFOneB),
        Kind::FillDrain => quote!(#schedule::ForwardOnly(#krate::pipeline::Flow::FillDrain)),
        Kind::Ring => quote!(#schedule::ForwardOnly(#krate::pipeline::Flow::Ring { rounds: #rounds })),
        Kind::Interleaved => quote!(#schedule::Interleaved { chunks: #chunks }),
        Kind::ZbH1 => quote!(#schedule::ZbH1),
        Kind::ZbV => quote!(#schedule::ZbV),
    }
}

fn plan(model: &Pipeline) -> TokenStream {
    let Pipeline { krate, visibility, .. } = model;
    let (parameters, _) = given(model);
    let schedule = schedule(model);
    let what = if model.kind == Kind::Ring { "slots" } else { "microbatches" };
    let microbatches = value(&model.microbatches, what);
    let [forward, backward, weight, transfer] = model.costs;
    let costs = quote!(#krate::pipeline::Costs::new(#forward, #backward, #weight).with_transfer(#transfer));
    let made = match &model.order {
        None => quote!(#krate::pipeline::Plan::new(#schedule, ranks, #microbatches, #costs)?),
        Some(order) => {
            let lists = order.iter().map(|list| {
                let actions = list.iter().map(|action| self::action(krate, action));
                quote!(::std::vec![#(#actions),*])
            });
            quote! {
                #krate::pipeline::Plan::by_hand(#schedule, ranks, #microbatches, #costs, ::std::vec![#(#lists),*])?
            }
        }
    };
    quote! {
        /// The plan on this many ranks.
        ///
        /// # Errors
        /// `InvalidArgument` for numbers that the schedule has no order for.
        #visibility fn plan(ranks: usize, #parameters) -> #krate::Result<#krate::pipeline::Plan> {
            ::core::result::Result::Ok(#made)
        }
    }
}

fn action(krate: &TokenStream, action: &Action) -> TokenStream {
    let message = |message: Message| {
        let (edge, microbatch) = (message.channel.edge, message.microbatch);
        let direction = match message.channel.direction {
            Direction::Forward => quote!(Forward),
            Direction::Backward => quote!(Backward),
        };
        quote! {
            #krate::pipeline::Message {
                channel: #krate::pipeline::Channel { edge: #edge, direction: #krate::pipeline::Direction::#direction },
                microbatch: #microbatch,
            }
        }
    };
    let all = quote!(#krate::pipeline::Action);
    match *action {
        Action::Compute(Work { phase, stage, microbatch }) => {
            let phase = match phase {
                Phase::Forward => quote!(Forward),
                Phase::Backward => quote!(Backward),
                Phase::BackwardInput => quote!(BackwardInput),
                Phase::BackwardWeight => quote!(BackwardWeight),
            };
            let phase = quote!(#krate::pipeline::Phase::#phase);
            quote!(#all::Compute(#krate::pipeline::Work { phase: #phase, stage: #stage, microbatch: #microbatch }))
        }
        Action::Send(sent) => {
            let sent = message(sent);
            quote!(#all::Send(#sent))
        }
        Action::Recv(received) => {
            let received = message(received);
            quote!(#all::Recv(#received))
        }
        Action::Exchange { send, recv } => {
            let (send, recv) = (message(send), message(recv));
            quote!(#all::Exchange { send: #send, recv: #recv })
        }
    }
}

/// The function that makes the pipeline on this rank, from what the user's `match` on the role gives.
fn build(model: &Pipeline, roles: &Ident) -> TokenStream {
    let Pipeline { krate, visibility, stages, .. } = model;
    let (parameters, arguments) = given(model);
    let rest = rest(model);
    let chain = stages.iter().map(|Role { name, ty, count }| {
        let make = quote! {
            |at| {
                let held = make(#roles::#name(at.again()))?;
                at.made(held)
            }
        };
        match count {
            None => quote_spanned!(ty.span() => .stage::<#ty>(#make)),
            Some(count) => {
                let count = value(count, "rest");
                quote_spanned!(ty.span() => .stages::<#ty>(#count, #make))
            }
        }
    });
    let wire = model.wire.as_ref().map(|wire| quote!(.grad_wire(#krate::pipeline::Wire::#wire)));
    let (Some(first), Some(last)) = (stages.first().map(|role| &role.ty), stages.last().map(|role| &role.ty)) else {
        return TokenStream::new();
    };
    let (function, start, bound) = match model.kind.trains() {
        true => (quote!(train), quote!(train), quote!(Train)),
        false => (quote!(infer), quote!(infer), quote!(Stage)),
    };
    let (input, output) = (
        quote_spanned!(first.span() => <#first as #krate::pipeline::#bound>::In),
        quote_spanned!(last.span() => <#last as #krate::pipeline::#bound>::Out),
    );
    let (made, finish) = match (&model.feedback, model.kind.trains()) {
        (Some(back), _) => (quote!(#krate::pipeline::Ring<A, #input, #output, #back>), quote!(.build_ring::<#back>())),
        (None, true) => (quote!(#krate::pipeline::Trainer<A, #input, #output>), quote!(.build())),
        (None, false) => (quote!(#krate::pipeline::Inference<A, #input, #output>), quote!(.build())),
    };
    let returns = model.feedback.as_ref().map(|back| {
        quote_spanned! { back.span() =>
            const _: fn() = || {
                fn returns<First: #krate::pipeline::Payload, Back: #krate::pipeline::Returns<First>>() {}
                returns::<#input, #back>();
            };
        }
    });
    let ranks = if model.known.is_some() { quote!(Self::RANKS) } else { quote!(comm.size()) };
    quote! {
        /// Joins the ranks of `comm`. `make` is called once for each stage of this rank, with its role, and gives it to
        /// `at.hold`.
        ///
        /// # Errors
        /// On every rank the same: `Rank` when making a stage failed on a rank, `InvalidArgument` when stages and ranks do
        /// not fit, `Mismatch` when the ranks' pipelines differ; what fails the group.
        #visibility fn #function<A: #krate::Axis>(
            comm: &#krate::Communicator<A>,
            #parameters
            mut make: impl for<'p> ::core::ops::FnMut(
                #roles<'p>,
            ) -> #krate::pipeline::StageResult<#krate::pipeline::Held<'p>>,
        ) -> #krate::Result<#made> {
            #returns
            let plan = Self::plan(#ranks, #arguments)?;
            #rest
            #krate::pipeline::#start(comm, plan)#wire #(#chain)* #finish
        }
    }
}

/// `rest`: how many stages `* _` is.
fn rest(model: &Pipeline) -> Option<TokenStream> {
    let given = model.stages.iter().any(|role| role.count.as_ref().is_some_and(Value::is_given));
    let others = model.stages.iter().map(|role| match &role.count {
        None => quote!(1),
        Some(Value::Given(_)) => quote!(0),
        Some(count) => value(count, "rest"),
    });
    given.then(|| quote!(let rest = plan.stages().saturating_sub(0usize #(+ #others)*);))
}
