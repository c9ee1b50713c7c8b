//! SSM_CONV.

use super::super::kernel::{Answer, Node};
use crate::graph::SsmConv;

/// Runs on the CPU: no kernel yet.
pub fn ssm_conv(_node: &Node<'_>, _params: &SsmConv) -> Option<Answer> {
    None
}
