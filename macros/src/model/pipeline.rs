//! What a pipeline may be: its roles, its schedule and numbers, and a plan that ends.

use super::order::{at_fault, lower};
use super::{Errors, krate};
use crate::parse::{self, Feedback, RankOrder, Setting, StageUse};
use hccl_plan::{Action, Costs, Flow, Plan, Schedule};
use proc_macro2::{Span, TokenStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, Lit, Path, Type};

/// A number of the declaration.
#[derive(Clone)]
pub(crate) enum Value {
    Literal(usize),
    Expr(Expr),
    /// `_`: an argument of the generated functions.
    Given(Span),
}

impl Value {
    fn of(expr: &Expr) -> syn::Result<Value> {
        match expr {
            Expr::Infer(infer) => Ok(Value::Given(infer.span())),
            Expr::Lit(lit) => match &lit.lit {
                Lit::Int(int) => Ok(Value::Literal(int.base10_parse()?)),
                other => Err(syn::Error::new(other.span(), "a number is needed here")),
            },
            Expr::Paren(paren) => Value::of(&paren.expr),
            other => Ok(Value::Expr(other.clone())),
        }
    }

    fn literal(&self) -> Option<usize> {
        match self {
            Value::Literal(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        matches!(self, Value::Given(_))
    }
}

/// A declared pipeline.
pub(crate) struct Pipeline {
    pub(crate) krate: TokenStream,
    pub(crate) attributes: Vec<syn::Attribute>,
    pub(crate) visibility: syn::Visibility,
    pub(crate) name: Ident,
    pub(crate) stages: Vec<Role>,
    pub(crate) kind: Kind,
    pub(crate) chunks: Value,
    pub(crate) rounds: Value,
    /// Or slots, in a ring.
    pub(crate) microbatches: Value,
    pub(crate) costs: [u32; 4],
    pub(crate) feedback: Option<Type>,
    pub(crate) wire: Option<Ident>,
    /// The plan's actions, when they were written by hand.
    pub(crate) order: Option<Vec<Vec<Action>>>,
    /// What the macro knows of the plan when every number is a literal.
    pub(crate) known: Option<Known>,
}

/// A role of the pipeline: a stage, or several of one type.
pub(crate) struct Role {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
    /// `None` for a stage without `*`.
    pub(crate) count: Option<Value>,
}

/// The plan that the macro checked.
pub(crate) struct Known {
    pub(crate) ranks: usize,
    pub(crate) digest: u64,
    pub(crate) picture: String,
}

/// The schedules by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    GPipe,
    OneFOneB,
    FillDrain,
    Ring,
    Interleaved,
    ZbH1,
    ZbV,
}

impl Kind {
    const ALL: [(&'static str, Kind); 7] = [
        ("gpipe", Kind::GPipe),
        ("one_f_one_b", Kind::OneFOneB),
        ("interleaved", Kind::Interleaved),
        ("zb_h1", Kind::ZbH1),
        ("zb_v", Kind::ZbV),
        ("fill_drain", Kind::FillDrain),
        ("ring", Kind::Ring),
    ];

    pub(crate) fn trains(self) -> bool {
        !matches!(self, Kind::FillDrain | Kind::Ring)
    }

    fn schedule(self, chunks: usize, rounds: usize) -> Schedule {
        match self {
            Kind::GPipe => Schedule::GPipe,
            Kind::OneFOneB => Schedule::OneFOneB,
            Kind::FillDrain => Schedule::ForwardOnly(Flow::FillDrain),
            Kind::Ring => Schedule::ForwardOnly(Flow::Ring { rounds }),
            Kind::Interleaved => Schedule::Interleaved { chunks },
            Kind::ZbH1 => Schedule::ZbH1,
            Kind::ZbV => Schedule::ZbV,
        }
    }
}

/// The settings, each at most once.
#[derive(Default)]
struct Settings {
    schedule: Option<(Span, parse::Schedule)>,
    feedback: Option<(Span, Feedback)>,
    grad: Option<(Span, Ident)>,
    costs: Option<(Span, Vec<syn::LitInt>)>,
    order: Option<(Span, Vec<RankOrder>)>,
    krate: Option<(Span, Path)>,
}

impl Settings {
    fn of(settings: Vec<Setting>, errors: &mut Errors) -> Settings {
        fn set<T>(place: &mut Option<(Span, T)>, span: Span, value: T, errors: &mut Errors) {
            if place.is_some() {
                errors.at(span, "said twice: leave one out");
            }
            place.get_or_insert((span, value));
        }
        let mut all = Settings::default();
        for setting in settings {
            match setting {
                Setting::Schedule(span, value) => set(&mut all.schedule, span, value, errors),
                Setting::Feedback(span, value) => set(&mut all.feedback, span, value, errors),
                Setting::Grad(span, value) => set(&mut all.grad, span, value, errors),
                Setting::Costs(span, value) => set(&mut all.costs, span, value, errors),
                Setting::Order(span, value) => set(&mut all.order, span, value, errors),
                Setting::Crate(span, value) => set(&mut all.krate, span, value, errors),
                Setting::Unknown(key) => errors.at(
                    key.span(),
                    format!(
                        "no setting `{key}`: there are `schedule`, `feedback`, `grad`, `costs`, `order` and `crate`"
                    ),
                ),
            }
        }
        all
    }
}

impl Pipeline {
    pub(crate) fn check(syntax: parse::Pipeline) -> syn::Result<Pipeline> {
        let mut errors = Errors::default();
        let settings = Settings::of(syntax.settings, &mut errors);
        let stages = roles(syntax.stages, &mut errors);
        let chosen = match &settings.schedule {
            Some((_, schedule)) => Chosen::of(schedule, &mut errors),
            None => {
                let name = &syntax.name;
                errors.at(
                    name.span(),
                    format!("`{name}` has no schedule: add `schedule = one_f_one_b(microbatches = 8);`"),
                );
                None
            }
        };
        let Some(chosen) = chosen else { return errors.check(None) };
        let feedback = feedback(settings.feedback, &chosen, &stages, &mut errors);
        let wire = settings.grad.and_then(|(_, name)| wire(name, &chosen, &mut errors));
        let costs = costs(settings.costs, &mut errors);
        let mut pipeline = Pipeline {
            krate: krate(settings.krate.map(|(_, path)| path)),
            attributes: syntax.attributes,
            visibility: syntax.visibility,
            name: syntax.name,
            stages,
            kind: chosen.kind,
            chunks: chosen.chunks.clone(),
            rounds: chosen.rounds.clone(),
            microbatches: chosen.microbatches.clone(),
            costs,
            feedback,
            wire,
            order: None,
            known: None,
        };
        pipeline.plan(&chosen, settings.order, &mut errors);
        errors.check(Some(pipeline))
    }

    /// Checks the plan as far as the numbers are known.
    fn plan(&mut self, chosen: &Chosen, order: Option<(Span, Vec<RankOrder>)>, errors: &mut Errors) {
        let count = |role: &Role| role.count.as_ref().map_or(Some(1), Value::literal);
        let stages = self.stages.iter().map(count).try_fold(0, |sum, count| Some(sum + count?));
        let numbers = stages.zip(self.chunks.literal()).zip(self.rounds.literal().zip(self.microbatches.literal()));
        let Some(((stages, chunks), (rounds, microbatches))) = numbers else {
            if let Some((span, _)) = order {
                errors.at(span, "an order by hand needs every number as a literal: stages, microbatches and all");
            }
            return;
        };
        if chunks == 0 || stages % chunks != 0 {
            let near = (stages / chunks.max(1)).max(1) * chunks;
            let message = format!(
                "{stages} stages cannot be dealt to ranks of {chunks} stages each: declare {near} or {} stages",
                near + chunks
            );
            return errors.at(chosen.name.span(), message);
        }
        let (schedule, ranks) = (self.kind.schedule(chunks, rounds), stages / chunks);
        let [forward, backward, weight, transfer] = self.costs;
        let costs = Costs { forward, backward, weight, transfer };
        let by_hand = order.is_some();
        let made = match order {
            None => Plan::new(schedule, ranks, microbatches, costs).map_err(|error| (chosen.microbatches_span, error)),
            Some((span, order)) => {
                let Some(actions) = lower(&order, ranks, span, errors) else { return };
                let plan = Plan::by_hand(schedule, ranks, microbatches, costs, actions);
                plan.map_err(|error| (at_fault(&error, &order).unwrap_or(span), error))
            }
        };
        let plan = match made {
            Ok(plan) => plan,
            Err((span, error)) => return errors.at(span, error),
        };
        self.known = Some(Known { ranks, digest: plan.digest(), picture: plan.to_text() });
        self.order = by_hand.then(|| (0..ranks).map(|rank| plan.actions(rank).to_vec()).collect());
    }
}

/// The roles, told apart by name.
fn roles(uses: Vec<StageUse>, errors: &mut Errors) -> Vec<Role> {
    let mut roles: Vec<Role> = Vec::new();
    for StageUse { name, ty, count } in uses {
        let named = name.is_some();
        let Some(name) = name.or_else(|| last_segment(&ty)) else {
            errors.at(ty.span(), "name the role of this stage: `Name: Type`");
            continue;
        };
        if roles.iter().any(|role| role.name == name) {
            let message = if named {
                format!("a role `{name}` is there already: give this one another name")
            } else {
                format!(
                    "the stage `{name}` is there already: write `{name} * 2` for neighbours of one type, or name the \
                     roles, as `Lower: {name} => Upper: {name}`"
                )
            };
            errors.at(name.span(), message);
            continue;
        }
        let count = count.and_then(|count| {
            let value = errors.keep(Value::of(&count))?;
            if value.literal() == Some(0) {
                errors.at(count.span(), "no stage at all: leave it out");
            }
            Some(value)
        });
        roles.push(Role { name, ty, count });
    }
    let given: Vec<Span> = roles
        .iter()
        .filter_map(|role| match role.count {
            Some(Value::Given(span)) => Some(span),
            _ => None,
        })
        .collect();
    if let Some(second) = given.get(1) {
        errors.at(*second, "only one `* _` can take the ranks that are left");
    }
    roles
}

fn last_segment(ty: &Type) -> Option<Ident> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.clone()),
        Type::Paren(paren) => last_segment(&paren.elem),
        Type::Group(group) => last_segment(&group.elem),
        _ => None,
    }
}

/// A schedule with its numbers.
struct Chosen {
    name: Ident,
    kind: Kind,
    chunks: Value,
    rounds: Value,
    microbatches: Value,
    microbatches_span: Span,
}

impl Chosen {
    fn of(schedule: &parse::Schedule, errors: &mut Errors) -> Option<Chosen> {
        let name = &schedule.name;
        let Some(&(_, kind)) = Kind::ALL.iter().find(|(known, _)| name == known) else {
            let known: Vec<String> = Kind::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
            errors.at(name.span(), format!("no schedule `{name}`: there are {}", known.join(", ")));
            return None;
        };
        let mut numbers = Numbers { given: &schedule.arguments, used: vec![false; schedule.arguments.len()] };
        let what = if kind == Kind::Ring { "slots" } else { "microbatches" };
        let microbatches = numbers.take(name, what, false, errors);
        let chunks = match kind {
            Kind::Interleaved => numbers.take(name, "chunks", true, errors).map(|(value, _)| value),
            Kind::ZbV => Some(Value::Literal(2)),
            _ => Some(Value::Literal(1)),
        };
        let rounds = match kind {
            Kind::Ring => numbers.take(name, "rounds", false, errors).map(|(value, _)| value),
            _ => Some(Value::Literal(1)),
        };
        numbers.refuse_rest(name, errors);
        let (microbatches, microbatches_span) = microbatches?;
        let (chunks, rounds) = (chunks?, rounds?);
        if let Value::Given(span) = chunks {
            errors.at(span, "the number of stages a rank holds is said here: a number or a constant");
        }
        Some(Chosen { name: name.clone(), kind, chunks, rounds, microbatches, microbatches_span })
    }
}

/// The arguments of a schedule, and which of them were asked for.
struct Numbers<'a> {
    given: &'a [(Option<Ident>, Expr)],
    used: Vec<bool>,
}

impl Numbers<'_> {
    /// The argument of this name, or, where that is allowed, the one without a name.
    fn take(&mut self, schedule: &Ident, what: &str, unnamed: bool, errors: &mut Errors) -> Option<(Value, Span)> {
        let fits = |(name, _): &(Option<Ident>, Expr)| match name {
            Some(name) => name == what,
            None => unnamed,
        };
        let Some(index) = self.given.iter().position(fits) else {
            errors.at(
                schedule.span(),
                format!("`{schedule}` needs `{what} = …`: a number, or `_` to say it at run time"),
            );
            return None;
        };
        self.used[index] = true;
        let expr = &self.given[index].1;
        errors.keep(Value::of(expr)).map(|value| (value, expr.span()))
    }

    fn refuse_rest(&self, schedule: &Ident, errors: &mut Errors) {
        for ((name, expr), _) in self.given.iter().zip(&self.used).filter(|(_, used)| !**used) {
            let (span, what) = match name {
                Some(name) => (name.span(), format!("argument `{name}`")),
                None => (expr.span(), "argument without a name".to_owned()),
            };
            errors.at(span, format!("`{schedule}` takes no {what}"));
        }
    }
}

/// The type that returns from the last stage to the first, in a ring and nowhere else.
fn feedback(given: Option<(Span, Feedback)>, chosen: &Chosen, roles: &[Role], errors: &mut Errors) -> Option<Type> {
    let (first, last) = (roles.first()?, roles.last()?);
    match given {
        None if chosen.kind == Kind::Ring => {
            let message = format!(
                "a ring needs to know what returns: add `feedback = {} => {}: Act<u32, (Fixed<1>,)>;`",
                last.name, first.name
            );
            errors.at(chosen.name.span(), message);
            None
        }
        None => None,
        Some((span, _)) if chosen.kind != Kind::Ring => {
            let message =
                format!("nothing returns in `{}`: leave `feedback` out, or use `schedule = ring(…)`", chosen.name);
            errors.at(span, message);
            None
        }
        Some((_, Feedback { from, to, ty })) => {
            if from != last.name {
                errors.at(from.span(), format!("what returns comes from the last stage, `{}`", last.name));
            }
            if to != first.name {
                errors.at(to.span(), format!("what returns goes to the first stage, `{}`", first.name));
            }
            Some(ty)
        }
    }
}

/// The variant of `Wire` for `grad = bf16`.
fn wire(name: Ident, chosen: &Chosen, errors: &mut Errors) -> Option<Ident> {
    if !chosen.kind.trains() {
        errors.at(name.span(), format!("`{}` has no gradients: leave `grad` out", chosen.name));
    }
    let variant = match name.to_string().as_str() {
        "f32" => "F32",
        "bf16" => "BF16",
        "f16" => "F16",
        _ => {
            errors.at(name.span(), "gradients travel as `f32`, `bf16` or `f16`");
            return None;
        }
    };
    Some(Ident::new(variant, Span::call_site()))
}

fn costs(given: Option<(Span, Vec<syn::LitInt>)>, errors: &mut Errors) -> [u32; 4] {
    let default = Costs::default();
    let mut costs = [default.forward, default.backward, default.weight, default.transfer];
    let Some((span, given)) = given else { return costs };
    if given.len() != 3 && given.len() != 4 {
        errors.at(span, "costs are `(forward, backward, weight)` in ticks, or those and `transfer`");
    }
    for (cost, literal) in costs.iter_mut().zip(&given) {
        if let Some(value) = errors.keep(literal.base10_parse()) {
            *cost = value;
        }
    }
    costs
}
