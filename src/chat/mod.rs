//! Chat: the template that turns messages into a prompt, the messages
//! themselves, and the texts that end a reply.

mod bounds;
mod clock;
mod environment;
mod filters;
mod guard;
mod methods;
mod python;
pub mod stop;
mod tags;
pub mod template;
pub mod think;
pub mod transcript;

pub use guard::GuardedText;
pub use stop::{StopMatcher, StopResult};
pub use template::{ChatTemplate, RenderOptions};
pub use think::{Part, ThinkSplitter};
pub use transcript::Transcript;
