//! MUL_MAT and its fused and expert forms.

use super::super::kernel::{Answer, Node};
use crate::graph::GluKind;

pub fn mul_mat(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn mul_mat_add(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn mul_mat_glu(_node: &Node<'_>, _kind: GluKind) -> Option<Answer> {
    None
}

pub fn mul_mat_id(_node: &Node<'_>) -> Option<Answer> {
    None
}

pub fn mul_mat_id_glu(_node: &Node<'_>, _kind: GluKind) -> Option<Answer> {
    None
}

pub fn pack_f16(_node: &Node<'_>) -> Option<Answer> {
    None
}
