//! GATED_DELTA_NET.

use super::super::kernel::{Answer, Node};
use crate::graph::GatedDelta;

/// Runs on the CPU: no kernel yet.
pub fn gated_delta_net(_node: &Node<'_>, _params: &GatedDelta) -> Option<Answer> {
    None
}
