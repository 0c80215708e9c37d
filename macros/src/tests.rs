//! What the macros write, as files to look at, and what they say about mistakes.
//!
//! `HCCL_SNAPSHOTS=overwrite cargo test -p hccl-macros` writes the files anew.

use crate::expand::{pipeline_or_errors, stage_or_errors};
use proc_macro2::TokenStream;
use std::path::Path;

fn tokens(text: &str) -> TokenStream {
    text.parse().expect("tokens")
}

fn pretty(tokens: TokenStream) -> String {
    let file = syn::parse2(tokens).expect("the expansion is Rust");
    prettyplease::unparse(&file)
}

/// Compares an expansion with its file.
fn snapshot(name: &str, expansion: TokenStream) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(name).with_extension("rs");
    let text = pretty(expansion);
    if std::env::var("HCCL_SNAPSHOTS").as_deref() == Ok("overwrite") {
        std::fs::write(&path, &text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}: HCCL_SNAPSHOTS=overwrite writes it anew");
}

const FORWARD: &str = "impl Embed { fn load(seed: u64) -> Self { Embed }
    pub fn forward(&self, ids: Act<u32, (Batch,)>) -> Result<Act<f32, (Batch, Hidden)>, MyError> { todo() } }";
const TRAINED: &str = "impl<T: Copy> Scale<T> where T: Send {
    fn forward(&mut self, pass: Pass, x: X) -> hccl::Result<(X, Saved<T>)> { body }
    fn backward(&mut self, saved: Saved<T>, grad: Grad<X>) -> hccl::Result<Grad<X>> { body } }";
const SPLIT: &str = "impl Linear {
    fn forward(&self, x: X) -> StageResult<(X, X)> { body }
    fn backward_input(&self, saved: X, grad: X) -> StageResult<(X, (X, X))> { body }
    fn backward_weight(&mut self, queued: (X, X)) -> StageResult<()> { body } 
    fn release(&mut self, slot: usize) {} }";

#[test]
fn stages_expand() {
    snapshot("stage_forward", stage_or_errors(tokens(""), tokens(FORWARD)));
    snapshot("stage_trained", stage_or_errors(tokens("crate = \"renamed::hccl\""), tokens(TRAINED)));
    snapshot("stage_split", stage_or_errors(tokens(""), tokens(SPLIT)));
    let function = "pub(crate) fn to_hidden(x: X) -> StageResult<Y> { body }";
    snapshot("stage_function", stage_or_errors(tokens(""), tokens(function)));
}

#[test]
fn pipelines_expand() {
    let train =
        "pub struct Toy = Embed => model::Blocks * 2 => Head; schedule = one_f_one_b(microbatches = 8); grad = bf16;";
    snapshot("pipeline_train", pipeline_or_errors(tokens(train)));
    let ring = "/// Generates.
        struct Llama = Embed => Blocks * _ => Head;
        schedule = ring(slots = _, rounds = ROUNDS + 1);
        feedback = Head => Embed: Act<u32, (Fixed<1>,)>;
        crate = \"renamed\";";
    let expansion = pipeline_or_errors(tokens(ring));
    assert!(!expansion.to_string().contains("hccl ::"), "every path begins with the crate's new name");
    snapshot("pipeline_ring", expansion);
    let order = "struct ByHand = First: Half => Second: Half; schedule = gpipe(microbatches = 1);
        order { rank 0 { F0, send F0, recv B0, B0 } rank 1 { recv F0, F0, B0, send B0 } }";
    snapshot("pipeline_order", pipeline_or_errors(tokens(order)));
}

/// The messages of an expansion that failed.
fn errors(expansion: TokenStream) -> Vec<String> {
    let text = expansion.to_string();
    let starts = text.split("compile_error").skip(1);
    starts.map(|rest| rest.split('"').nth(1).unwrap_or_default().to_owned()).collect()
}

#[track_caller]
fn refused(input: &str, expected: &[&str]) {
    let errors = errors(pipeline_or_errors(tokens(input)));
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }
}

#[test]
fn wrong_pipelines_are_refused_with_what_to_write() {
    refused("struct P = A => B;", &["`P` has no schedule: add `schedule = one_f_one_b(microbatches = 8);`"]);
    refused("struct P = A => B; schedule = 1f1b;", &["expected identifier"]);
    refused("struct P = A => B; schedule = gpipes(microbatches = 4);", &["no schedule `gpipes`: there are `gpipe`"]);
    refused("struct P = A => B; schedule = gpipe;", &["`gpipe` needs `microbatches = …`"]);
    refused(
        "struct P = A => B; schedule = gpipe(microbatches = 4, slots = 2);",
        &["`gpipe` takes no argument `slots`"],
    );
    refused("struct P = A => B; schedule = interleaved(2, microbatches = 4);", &["interleaved(2) on 1 ranks"; 0]);
    refused(
        "struct P = A * 4; schedule = interleaved(2, microbatches = 5);",
        &["interleaved(2) on 2 ranks cannot run 5 microbatches (hint: use 4 or 6"],
    );
    refused(
        "struct P = A * 3; schedule = zb_v(microbatches = 5);",
        &["3 stages cannot be dealt to ranks of 2 stages each: declare 2 or 4 stages"],
    );
    refused(
        "struct P = A => A; schedule = gpipe(microbatches = 1);",
        &["the stage `A` is there already: write `A * 2`"],
    );
    refused("struct P = X: A => X: B; schedule = gpipe(microbatches = 1);", &["a role `X` is there already"]);
    refused("struct P = A => B * 0; schedule = gpipe(microbatches = 1);", &["no stage at all"]);
    refused("struct P = A => B; schedule = gpipe(microbatches = 0);", &["gpipe: 0 microbatches"]);
    refused(
        "struct P = A => B; schedule = ring(slots = 1, rounds = 2);",
        &["a ring needs to know what returns: add `feedback = B => A: Act<u32, (Fixed<1>,)>;`"],
    );
    refused(
        "struct P = A => B; schedule = ring(slots = 1, rounds = 2); feedback = A => B: T;",
        &["what returns comes from the last stage, `B`", "what returns goes to the first stage, `A`"],
    );
    refused(
        "struct P = A => B; schedule = gpipe(microbatches = 1); feedback = B => A: T;",
        &["nothing returns in `gpipe`: leave `feedback` out"],
    );
    refused(
        "struct P = A => B; schedule = fill_drain(microbatches = 1); grad = f8;",
        &["`fill_drain` has no gradients", "gradients travel as `f32`, `bf16` or `f16`"],
    );
    refused(
        "struct P = A => B; schedule = gpipe(microbatches = 1); microbatch = 3; schedule = zb_h1(microbatches = 1);",
        &["no setting `microbatch`", "said twice"],
    );
    refused("mod p = A => B;", &["a pipeline is declared as `struct Name = First => Second => Third;`"]);
    refused("struct P = A * _ => B * _; schedule = gpipe(microbatches = 1);", &["only one `* _`"]);
}

#[test]
fn orders_by_hand_are_checked() {
    let order =
        |ranks: &str| format!("struct P = A => B; schedule = one_f_one_b(microbatches = 2); order {{ {ranks} }}");
    let zero = "rank 0 { F0, send F0, F1, send F1, recv B0, B0, recv B1, B1 }";
    refused(
        &order(&format!("{zero} rank 1 {{ recv F0, F0, B0, send B0, recv F1, F1, B1, send B1 }}")),
        &["deadlock: rank 0, action 3 (send the activation of microbatch 1 over edge 0) waits for rank 1"],
    );
    refused(&order(zero), &["the order of rank 1 is missing"]);
    refused(&order(&format!("{zero} rank 2 {{ }}")), &["there is no such rank", "the order of rank 1 is missing"]);
    refused(&order(&format!("{zero} rank 1 {{ X0 }}")), &["an action is `F0`"]);
    refused(
        &order(&format!("rank 0 {{ recv F0 }} {zero} rank 1 {{ }}")),
        &["rank 0 has nobody before it", "this rank's order is there already"],
    );
    let fits = "rank 1 { recv F0, F0, recv F1, B0, send B0, F1, B1, send B1 }";
    assert!(errors(pipeline_or_errors(tokens(&order(&format!("{zero} {fits}"))))).is_empty());
}

#[track_caller]
fn no_stage(item: &str, expected: &[&str]) {
    let expansion = stage_or_errors(TokenStream::new(), tokens(item));
    assert!(expansion.to_string().starts_with(&tokens(item).to_string()), "the item is emitted unchanged");
    let errors = errors(expansion);
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }
}

#[test]
fn wrong_stages_are_refused_and_emitted_unchanged() {
    no_stage("impl A { fn run(&self) {} }", &["a stage needs `fn forward(&self, input: In) -> Result<Out>`"]);
    no_stage("impl A { fn forward(self, x: X) -> Result<Y> { } }", &["take `&self` or `&mut self`"]);
    no_stage("impl A { fn forward(x: X) -> Result<Y> { } }", &["takes `&self` or `&mut self` first"]);
    no_stage("impl A { fn forward(&self, x: X) -> Y { } }", &["returns `Result<…>`"]);
    no_stage("impl A { fn forward(&self) -> Result<Y> { } }", &["takes its input"]);
    no_stage("impl A { async fn forward(&self, x: X) -> Result<Y> { } }", &["cannot be async"]);
    no_stage(
        "impl T for A { fn forward(&self, x: X) -> Result<Y> { } }",
        &["put `#[stage]` on the inherent `impl` block"],
    );
    no_stage(
        "impl A { fn forward(&self, x: X) -> Result<Y> { } fn backward(&self, s: S, g: Y) -> Result<X> { } }",
        &["returns `Result<(Out, Saved)>`"],
    );
    no_stage(
        "impl A { fn forward(&self, x: X) -> Result<(Y, S)> { } fn backward_input(&self, s: S, g: Y) -> Result<(X, Q)> { } }",
        &["`backward_input` needs `backward_weight"],
    );
    no_stage("struct A;", &["`#[stage]` goes on an `impl` block or a function"]);
    no_stage("fn f<T>(x: T) -> Result<T> { }", &["a stage made of a function has no generics"]);
}
