//! GET_ROWS, SET_ROWS, CONT, CPY.

use super::super::kernel::{Answer, Node};

pub fn get_rows(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn set_rows(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn cont(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn cpy(_node: &Node<'_>) -> Option<Answer> {
    None
}
