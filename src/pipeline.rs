//! Pipelines: plans that are proved before they run.
#[doc(inline)]
pub use hccl_plan::{
    Action, Blocked, Bubble, Channel, Costs, Direction, Flow, Loss, Message, Phase, Plan, PlanError, Schedule, Span,
    Timeline, Work,
};
