//! MOE_ROUTE, MOE_SUM.

use super::super::kernel::{Answer, Node};

pub fn route(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn sum(_node: &Node<'_>) -> Option<Answer> {
    None
}
