//! `llama-rs inspect`: metadata and tensors of a file.

use super::args::InspectArgs;
use super::model_path;
use super::output::{Product, human_bytes};
use crate::gguf::{Gguf, Metadata, TensorInfo, Value};
use gguf_rs_lib::format::GGUFValueType;
use serde_json::{Map, Value as Json, json};
use std::io::{self, Write};

/// Elements of an array that are shown.
const SHOWN: usize = 8;

/// Runs the command.
pub fn run(args: InspectArgs) -> anyhow::Result<()> {
    let gguf = model_path::open(args.file.as_deref(), &args.hub, true)?;
    let mut metadata = Map::new();
    for (key, value) in gguf.meta.iter() {
        metadata.insert(key.to_string(), shown(&gguf.meta, key, value)?);
    }
    let mut product = Product::stdout();
    if args.json {
        let object = json!({
            "version": gguf.version,
            "metadata": metadata,
            "tensors": gguf.tensors.iter().map(tensor).collect::<Vec<_>>(),
        });
        writeln!(product, "{object}")?;
    } else {
        print_text(&mut product, &gguf, &metadata)?;
    }
    product.flush()?;
    Ok(())
}

fn print_text(product: &mut Product, gguf: &Gguf, metadata: &Map<String, Json>) -> io::Result<()> {
    let (path, version) = (gguf.path.display(), gguf.version);
    writeln!(product, "{path}: GGUF version {version}")?;
    writeln!(product, "\n{} metadata keys", metadata.len())?;
    for (key, value) in metadata {
        writeln!(product, "  {key} = {value}")?;
    }
    let bytes = gguf.tensors.iter().map(|t| t.bytes).sum();
    let n_tensors = gguf.tensors.len();
    writeln!(product, "\n{n_tensors} tensors, {}", human_bytes(bytes))?;
    for t in &gguf.tensors {
        let name = printable(&t.name);
        let (kind, shape) = (t.type_name(), &t.shape);
        writeln!(product, "  {name:<40} {kind:<8} {shape:?}")?;
    }
    Ok(())
}

/// A name without control characters: it goes to a terminal.
fn printable(name: &str) -> String {
    name.chars().flat_map(|c| c.escape_debug()).collect()
}

/// `shape` in GGUF order, `offset` from the start of the file.
fn tensor(tensor: &TensorInfo) -> Json {
    json!({
        "name": tensor.name,
        "type": tensor.type_name(),
        "shape": tensor.shape,
        "offset": tensor.offset,
        "bytes": tensor.bytes,
    })
}

/// A metadata value; an array as its element type, length and first elements.
fn shown(meta: &Metadata, key: &str, value: &Value) -> crate::Result<Json> {
    Ok(match value {
        Value::Uint(v) => json!(v),
        Value::Int(v) => json!(v),
        Value::Float(v) => number(*v),
        Value::Bool(v) => json!(v),
        Value::Text(text) => json!(text),
        Value::Str(_) => {
            let bytes = meta.get_bytes(key)?.unwrap_or_default();
            json!(String::from_utf8_lossy(bytes))
        }
        Value::Array(kind, length, _) => json!({
            "type": kind.name(),
            "length": length,
            "first": first(meta, key, *kind)?,
        }),
    })
}

fn first(meta: &Metadata, key: &str, kind: GGUFValueType) -> crate::Result<Vec<Json>> {
    if kind == GGUFValueType::String {
        let strings = meta.get_str_array(key)?;
        let strings = strings.into_iter().flatten().take(SHOWN);
        return Ok(strings
            .map(|(_, bytes)| json!(String::from_utf8_lossy(bytes)))
            .collect());
    }
    let numbers = meta.get_number_array(key)?.unwrap_or_default();
    let numbers = numbers.into_iter().take(SHOWN);
    Ok(numbers
        .map(|v| match kind {
            GGUFValueType::Bool => json!(v != 0.0),
            GGUFValueType::F32 | GGUFValueType::F64 => number(v),
            // Integers come as f64 and are exact there.
            _ if v < 0.0 => json!(v as i64),
            _ => json!(v as u64),
        })
        .collect())
}

/// Floats that came from 32 bits are shown with the digits those have.
fn number(v: f64) -> Json {
    let single = v as f32;
    if f64::from(single) == v {
        return json!(single.to_string().parse::<f64>().unwrap_or(v));
    }
    json!(v)
}

#[cfg(test)]
mod tests {
    use super::number;
    use serde_json::json;

    #[test]
    fn single_precision_shows_its_own_digits() {
        assert_eq!(number(f64::from(1e-5_f32)), json!(1e-5));
        assert_eq!(number(0.1), json!(0.1));
        assert_eq!(number(f64::INFINITY), json!(null));
    }
}
