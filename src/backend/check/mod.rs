//! Checks of every op: the table of cases, and backends held to the CPU's reference.
//!
//! `store` holds operands, `case` is one comparison, `cases` the table, by op; `target`
//! runs a case on a backend and on the reference, `compare` holds one to the other.
//! Both `tests/op_parity.rs` and `llama-rs ops` go over this table.

pub mod case;
pub mod cases;
pub mod compare;
pub mod peak;
pub mod perf;
pub mod perf_table;
pub mod random;
pub mod sample;
pub mod sets;
pub mod shape;
pub mod shapes;
pub mod store;
pub mod target;
