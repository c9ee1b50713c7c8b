//! Backends: what evaluates a graph.

pub mod cpu;
