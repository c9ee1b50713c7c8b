//! How much a template may do: templates come with files of unknown origin.

use crate::error::{Error, Result};
use std::sync::mpsc;
use std::time::Duration;

/// Fuel of every rendering. The 23 templates of the shared data use under 450
/// on their conversations of one to four messages.
pub(super) const BASE_FUEL: u64 = 100_000;
/// Fuel more a message: far above what one takes because some templates look
/// at all other messages from each.
const FUEL_PER_MESSAGE: u64 = 2_000;
/// Fuel more for this many bytes of message, where 64 bytes copied cost one.
const BYTES_PER_FUEL: u64 = 4;
/// Most fuel, whatever the messages.
pub(super) const MAX_FUEL: u64 = 1_000_000;
/// Stack of the thread a template runs in. A unit of fuel nests a value one
/// level deeper at most, and printing, comparing or dropping a level takes under
/// 512 bytes (a test of `template.rs` tries); only what is used is ever backed
/// by memory.
const STACK_BYTES_PER_FUEL: u64 = 512;
const BASE_STACK_BYTES: u64 = 64 << 20;
/// What the engine does not count (comparing lists that share their items,
/// stepping over most of a long list) ends here. Known templates take under
/// 10 ms.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Fuel for rendering these messages.
pub(super) fn fuel(messages: &[serde_json::Value]) -> u64 {
    let bytes: u64 = messages.iter().map(text_bytes).sum();
    BASE_FUEL
        .saturating_add((messages.len() as u64).saturating_mul(FUEL_PER_MESSAGE))
        .saturating_add(bytes / BYTES_PER_FUEL)
        .min(MAX_FUEL)
}

/// Runs `job` on a thread of its own whose stack is large enough for what
/// `fuel` can build, and gives up on it after [`TIME_LIMIT`]. A thread that
/// is given up cannot be stopped; it ends with the process.
pub(super) fn run<T: Send + 'static>(
    origin: &str,
    fuel: u64,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    let stack_bytes = BASE_STACK_BYTES + fuel * STACK_BYTES_PER_FUEL;
    std::thread::Builder::new()
        .name("chat template".to_string())
        .stack_size(stack_bytes as usize)
        .spawn(move || sender.send(job()))
        .map_err(|e| Error::io("cannot start a thread for the chat template", e))?;
    receiver
        .recv_timeout(TIME_LIMIT)
        .unwrap_or_else(|gone| match gone {
            mpsc::RecvTimeoutError::Timeout => Err(Error::input(format!(
                "{}: the chat template did not end within {} s; give another with --chat-template-file",
                origin,
                TIME_LIMIT.as_secs()
            ))),
            mpsc::RecvTimeoutError::Disconnected => Err(Error::input(format!(
                "{}: the chat template broke its engine; give another with --chat-template-file",
                origin
            ))),
        })
}

/// Bytes of all strings in a JSON value.
fn text_bytes(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::String(text) => text.len() as u64,
        serde_json::Value::Array(list) => list.iter().map(text_bytes).sum(),
        serde_json::Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| key.len() as u64 + text_bytes(value))
            .sum(),
        _ => 0,
    }
}
