//! ARGMAX, TOP_K, SUM_ROWS, MEAN, CUMSUM.

use super::super::kernel::{Answer, Node};

pub fn argmax(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn top_k(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn sum_rows(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn mean(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn cumsum(_node: &Node<'_>) -> Option<Answer> {
    None
}
