//! RMS_NORM, NORM, SOFT_MAX.

use super::super::kernel::{Answer, Node};

pub fn rms_norm(_node: &Node<'_>, _eps: f32) -> Option<Answer> {
    None
}

pub fn norm(_node: &Node<'_>, _eps: f32) -> Option<Answer> {
    None
}

pub fn soft_max(_node: &Node<'_>, _scale: f32) -> Option<Answer> {
    None
}
