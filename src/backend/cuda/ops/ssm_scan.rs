//! SSM_SCAN.

use super::super::kernel::{Answer, Node};
use crate::graph::SsmScan;

/// Runs on the CPU: no kernel yet.
pub fn ssm_scan(_node: &Node<'_>, _params: &SsmScan) -> Option<Answer> {
    None
}
