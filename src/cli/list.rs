//! `llama-rs list`: the models in the cache.

use super::args::ListArgs;
use super::hub;
use super::output::{Product, human_bytes, printable};
use crate::hub::Kept;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value as Json, json};
use std::io::{self, Write};

/// Runs the command.
pub fn run(args: ListArgs) -> anyhow::Result<()> {
    let models = hub::list()?;
    let mut product = Product::stdout();
    if args.json {
        let all: Vec<Json> = models.iter().map(object).collect();
        writeln!(product, "{}", json!({ "models": all }))?;
    } else {
        print_table(&mut product, &models)?;
    }
    product.flush()?;
    if models.is_empty() {
        tracing::info!("nothing in the cache; `llama-rs pull USER/REPO` fetches a model");
    }
    Ok(())
}

fn object(model: &Kept) -> Json {
    json!({
        "repo": model.repo,
        "file": model.file,
        "path": model.path.as_ref().map(|path| path.to_string_lossy()),
        "files": model.files,
        "bytes": model.bytes,
        "modified": timestamp(model).map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        "partial": model.path.is_none(),
    })
}

fn timestamp(model: &Kept) -> Option<Timestamp> {
    Timestamp::try_from(model.modified).ok()
}

/// Columns as wide as their longest entry; none without models.
fn print_table(product: &mut Product, models: &[Kept]) -> io::Result<()> {
    if models.is_empty() {
        return Ok(());
    }
    let head = ["repo", "file", "size", "modified"].map(String::from);
    let rows: Vec<[String; 4]> = std::iter::once(head)
        .chain(models.iter().map(row))
        .collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let (repos, files, sizes) = (width(0), width(1), width(2));
    for [repo, file, size, modified] in &rows {
        writeln!(
            product,
            "{repo:<repos$}  {file:<files$}  {size:>sizes$}  {modified}"
        )?;
    }
    Ok(())
}

fn row(model: &Kept) -> [String; 4] {
    let more = match (&model.path, model.files) {
        (None, _) => " (partial)".to_string(),
        (_, 1) => String::new(),
        (_, files) => format!(" ({files} files)"),
    };
    let size = human_bytes(usize::try_from(model.bytes).unwrap_or(usize::MAX));
    let modified = timestamp(model).map(|time| {
        let local = time.to_zoned(TimeZone::system());
        local.strftime("%Y-%m-%d %H:%M").to_string()
    });
    let file = format!("{}{more}", printable(&model.file));
    [
        printable(&model.repo),
        file,
        size,
        modified.unwrap_or_default(),
    ]
}
