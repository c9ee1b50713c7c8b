//! One graph on several devices: which node runs where, the segments that
//! follow from it, and an executable that runs them in order.

mod exec;
mod place;
mod split;

pub use exec::compile;
pub use place::{HOST, Placed, Rules, cache_devices, place};
pub use split::{Border, Segment, Source, Split, split};
