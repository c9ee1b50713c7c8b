//! What was measured, as a table, JSON or CSV.

use super::args::BenchFormat;
use super::memory::Bandwidth;
use super::plan::{Kind, Test};
use super::stats::{Samples, deviation, mean, median};
use crate::backend::Device;
use crate::cli::flags::EvalArgs;
use crate::cli::output::{Product, human_bytes};
use crate::gguf::Gguf;
use crate::session::Session;
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::io::Write;

/// The model that is measured.
pub struct Subject {
    pub path: String,
    pub arch: String,
    pub dtype: String,
    pub bytes: usize,
    pub n_params: u64,
}

/// The type in which most of a file's bytes are.
pub fn main_type(gguf: &Gguf) -> String {
    let mut bytes: HashMap<String, usize> = HashMap::new();
    for tensor in &gguf.tensors {
        *bytes.entry(tensor.type_name()).or_default() += tensor.bytes;
    }
    // Names, too, so that of equal ones it is always the same.
    let most = bytes.into_iter().max_by_key(|(name, n)| (*n, name.clone()));
    most.map(|(name, _)| name).unwrap_or_default()
}

/// How it is evaluated.
pub struct Setting {
    backend: &'static str,
    n_layers: usize,
    n_threads: usize,
    n_batch: usize,
    n_ubatch: usize,
    type_k: &'static str,
    type_v: &'static str,
}

impl Setting {
    /// The backend and its layers are named as in llama-bench.
    pub fn new(session: &Session, eval: &EvalArgs, n_threads: usize) -> Setting {
        let (backend, n_layers) = match session.load() {
            Some(load) if load.n_layers > 0 => match load.device {
                Device::Cuda(_) => ("CUDA", load.n_layers),
                Device::Cpu => ("CPU", load.n_layers),
            },
            _ => ("CPU", 0),
        };
        let (type_k, type_v) = eval.numerics.kv_types();
        Setting {
            backend,
            n_layers,
            n_threads,
            n_batch: eval.context.batch_size,
            n_ubatch: eval.context.ubatch_size.min(eval.context.batch_size),
            type_k: type_k.name(),
            type_v: type_v.name(),
        }
    }
}

/// Prints tests as they come; JSON at the end.
pub struct Report {
    product: Product,
    format: BenchFormat,
    subject: Subject,
    rows: Vec<Json>,
}

/// Columns of the table; numbers stand on the right.
const COLUMNS: [(&str, &str); 11] = [
    ("model", "---"),
    ("size", "---:"),
    ("params", "---:"),
    ("backend", "---"),
    ("ngl", "---:"),
    ("threads", "---:"),
    ("n_ubatch", "---:"),
    ("test", "---:"),
    ("t/s", "---:"),
    ("GB/s", "---:"),
    ("of memory", "---:"),
];

impl Report {
    pub fn new(format: BenchFormat, subject: Subject) -> Report {
        Report {
            product: Product::stdout(),
            format,
            subject,
            rows: Vec::new(),
        }
    }

    /// Takes in a test. Where it decodes, with the bytes a step moves, and what the
    /// memory gives where that is known.
    pub fn add(
        &mut self,
        setting: &Setting,
        test: Test,
        samples: &Samples,
        bytes_per_step: Option<f64>,
        bandwidth: Option<Bandwidth>,
    ) -> anyhow::Result<()> {
        let speeds = samples.speeds();
        let steps_per_second = mean(&speeds) / test.n_seqs as f64;
        let rate = bytes_per_step.map(|bytes| bytes * steps_per_second);
        let share = rate.and_then(|rate| Some(rate / bandwidth?.bytes_per_second));
        if self.format == BenchFormat::Md {
            let cells = self.cells(setting, test, &speeds, rate, share);
            return self.print_cells(&cells);
        }
        let mut row = self.row(setting, test, samples);
        row["bytes_per_step"] = json!(bytes_per_step.map(f64::round));
        row["gb_per_second"] = json!(rate.map(|rate| round(rate / 1e9)));
        row["memory_gb_per_second"] = json!(
            bandwidth
                .filter(|_| rate.is_some())
                .map(|b| round(b.bytes_per_second / 1e9))
        );
        row["share_of_memory"] = json!(share.map(|share| (share * 1e4).round() / 1e4));
        if self.format == BenchFormat::Csv {
            self.print_csv(&row)?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints what is left.
    pub fn finish(mut self) -> anyhow::Result<()> {
        if self.format == BenchFormat::Json {
            writeln!(self.product, "{}", Json::Array(self.rows))?;
        }
        self.product.flush()?;
        Ok(())
    }

    /// The cells of the table's row, by [`COLUMNS`].
    fn cells(
        &self,
        setting: &Setting,
        test: Test,
        speeds: &[f64],
        rate: Option<f64>,
        share: Option<f64>,
    ) -> [String; 11] {
        let or_empty = |text: Option<String>| text.unwrap_or_default();
        [
            self.model(),
            human_bytes(self.subject.bytes),
            human_count(self.subject.n_params),
            setting.backend.to_string(),
            setting.n_layers.to_string(),
            setting.n_threads.to_string(),
            setting.n_ubatch.to_string(),
            test.to_string(),
            format!("{:.2} ± {:.2}", mean(speeds), deviation(speeds)),
            or_empty(rate.map(|rate| format!("{:.1}", rate / 1e9))),
            or_empty(share.map(|share| format!("{:.0} %", share * 100.0))),
        ]
    }

    /// Before the first row there is the head.
    fn print_cells(&mut self, cells: &[String; 11]) -> anyhow::Result<()> {
        let mut text = String::new();
        if self.rows.is_empty() {
            text += &format!("| {} |\n", COLUMNS.map(|column| column.0).join(" | "));
            text += &format!("| {} |\n", COLUMNS.map(|column| column.1).join(" | "));
        }
        text += &format!("| {} |\n", cells.join(" | "));
        self.rows.push(Json::Null);
        self.product.stream(text.as_bytes())?;
        Ok(())
    }

    /// A test as an object, with llama-bench's keys where it has them.
    fn row(&self, setting: &Setting, test: Test, samples: &Samples) -> Json {
        let (n_prompt, n_gen) = match test.kind {
            Kind::Prefill(n) => (n, 0),
            Kind::Decode(n) => (0, n),
        };
        let speeds = samples.speeds();
        let nanos: Vec<u64> = samples.times.iter().map(|t| t.as_nanos() as u64).collect();
        json!({
            "model_filename": self.subject.path,
            "model_type": self.model(),
            "model_size": self.subject.bytes,
            "model_n_params": self.subject.n_params,
            "backends": setting.backend,
            "n_gpu_layers": setting.n_layers,
            "n_threads": setting.n_threads,
            "n_batch": setting.n_batch,
            "n_ubatch": setting.n_ubatch,
            "type_k": setting.type_k,
            "type_v": setting.type_v,
            "test": test.to_string(),
            "n_prompt": n_prompt,
            "n_gen": n_gen,
            "n_depth": test.n_depth,
            "n_seqs": test.n_seqs,
            "avg_ts": round(mean(&speeds)),
            "stddev_ts": round(deviation(&speeds)),
            "median_ts": round(median(&speeds)),
            "samples_ns": nanos,
            "samples_ts": speeds.iter().map(|&x| round(x)).collect::<Vec<_>>(),
        })
    }

    fn print_csv(&mut self, row: &Json) -> anyhow::Result<()> {
        let fields = row.as_object().into_iter().flatten();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (key, value) in fields {
            keys.push(key.clone());
            values.push(csv_field(value));
        }
        if self.rows.is_empty() {
            writeln!(self.product, "{}", keys.join(","))?;
        }
        self.product
            .stream(format!("{}\n", values.join(",")).as_bytes())?;
        Ok(())
    }

    /// `llama 8.0 B q4_K`.
    fn model(&self) -> String {
        let Subject { arch, dtype, .. } = &self.subject;
        format!("{arch} {} {dtype}", human_count(self.subject.n_params))
    }
}

/// Text is quoted, lists are joined with spaces, what is unknown is empty.
fn csv_field(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        Json::Array(values) => {
            let values: Vec<String> = values.iter().map(Json::to_string).collect();
            format!("\"{}\"", values.join(" "))
        }
        other => other.to_string(),
    }
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// `8.03 B`, as llama-bench writes a number of parameters.
fn human_count(n: u64) -> String {
    let n = n as f64;
    match n {
        _ if n >= 1e9 => format!("{:.2} B", n / 1e9),
        _ if n >= 1e6 => format!("{:.2} M", n / 1e6),
        _ => format!("{:.2} K", n / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_fields_are_readable() {
        assert_eq!(human_count(8_030_261_248), "8.03 B");
        assert_eq!(human_count(134_515_008), "134.52 M");
        assert_eq!(human_count(500), "0.50 K");
        assert_eq!(csv_field(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(csv_field(&json!([1, 2.5])), "\"1 2.5\"");
        assert_eq!(csv_field(&json!(null)), "");
    }
}
