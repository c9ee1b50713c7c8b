//! GGUF files, good, damaged and hostile: each gives its values or one line
//! that says what is wrong.

#[path = "gguf/build.rs"]
mod build;
#[path = "gguf/split.rs"]
mod split;

use build::{ARRAY, BOOL, File, I8, STRING, U8, U32, array, sample, string};
use llama_rs::gguf::{FileBytes, Gguf, Value};
use llama_rs::{Error, Result};
use proptest::prelude::*;
use std::path::Path;

fn parse(bytes: &[u8]) -> Result<Gguf> {
    let path = Path::new("test.gguf");
    let mut reader = bytes;
    Gguf::from_bytes(
        path,
        FileBytes::read(path, &mut reader, bytes.len() as u64)?,
    )
}

/// The error's text, held to one line that names the file.
fn message(result: Result<Gguf>) -> String {
    let error = result.err().expect("the file is refused");
    let text = error.to_string();
    assert!(!text.contains(['\n', '\r', '\u{1b}']), "{text:?}");
    assert!(text.contains(".gguf: ") && text.contains("; "), "{text}");
    assert!(text.len() < 500, "{text}");
    assert_eq!(error.exit_code(), 1);
    text
}

fn refused(file: &File, wants: &str) {
    let text = message(parse(&file.bytes()));
    assert!(text.contains(wants), "{text:?} does not say {wants:?}");
}

#[test]
fn every_value_type_is_read() {
    for version in [2, 3] {
        let mut file = sample();
        file.version = version;
        let gguf = parse(&file.bytes()).unwrap();
        let meta = &gguf.meta;
        assert_eq!(gguf.version, version);
        assert_eq!(meta.iter().count(), 11);
        assert_eq!(meta.get_str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(meta.get_u32("gpt-oss.block_count").unwrap(), Some(24));
        assert_eq!(meta.get("x.u8"), Some(&Value::Uint(200)));
        assert_eq!(meta.get("x.i8"), Some(&Value::Int(-1)));
        assert_eq!(meta.get_i32("x.i32").unwrap(), Some(-5));
        assert_eq!(meta.get_u64("x.u64").unwrap(), Some(u64::MAX));
        assert_eq!(meta.get_f32("x.f32").unwrap(), Some(0.25));
        assert_eq!(meta.get_bool("x.bool").unwrap(), Some(true));
        let bools = meta.get_number_array("x.bools").unwrap();
        assert_eq!(bools, Some(vec![1.0, 0.0, 1.0]));
        let scores = meta.get_number_array("x.scores").unwrap();
        assert_eq!(scores, Some(vec![1.5, -2.0]));
        let tokens = meta.get_str_array("x.tokens").unwrap().unwrap();
        assert_eq!(tokens.len(), 3);
        for (at, text) in tokens.clone() {
            assert_eq!(&meta.file_bytes()[at..at + text.len()], text);
        }
        let texts: Vec<&[u8]> = tokens.map(|(_, text)| text).collect();
        assert_eq!(texts, [b"a" as &[u8], b"bc", b""]);
        assert_eq!(meta.get_str("absent").unwrap(), None);
    }
}

#[test]
fn values_of_another_type_are_errors() {
    let gguf = parse(&sample().bytes()).unwrap();
    let meta = &gguf.meta;
    let errors = [
        meta.get_u32("x.u64").err(),
        meta.get_i32("x.u64").err(),
        meta.get_u64("x.i8").err(),
        meta.get_bool("x.u8").err(),
        meta.get_f32("x.tokens").err(),
        meta.get_str("x.bool").err(),
        meta.get_str_array("x.scores").err(),
        meta.get_number_array("x.tokens").err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        let text = error.unwrap_or_else(|| panic!("case {i}")).to_string();
        assert!(text.starts_with("test.gguf: metadata key x."), "{text}");
    }
}

#[test]
fn tensors_lie_where_they_should() {
    let gguf = parse(&sample().bytes()).unwrap();
    assert_eq!(gguf.tensors.len(), 3);
    let places = [(0, 16, "F32"), (32, 12, "F16"), (64, 68, "Q8_0")];
    for (tensor, (offset, bytes, ty)) in gguf.tensors.iter().zip(places) {
        let want: Vec<u8> = (offset..offset + bytes).map(|i| i as u8).collect();
        assert_eq!(gguf.data(tensor), want, "{}", tensor.name);
        assert_eq!(tensor.type_name(), ty);
        assert_eq!(gguf.data(tensor).as_ptr() as usize % 32, 0, "aligned");
    }
}

#[test]
fn mapped_and_read_files_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, sample().bytes()).unwrap();
    let [a, b] = [true, false].map(|mmap| Gguf::open(&path, mmap).unwrap());
    assert_eq!(a.size_bytes(), b.size_bytes());
    for (a_tensor, b_tensor) in a.tensors.iter().zip(&b.tensors) {
        assert_eq!(a.data(a_tensor), b.data(b_tensor));
    }
}

#[test]
fn strings_need_not_be_utf8() {
    let tokens = [string([0xff, 0xfe]), string("ok")].concat();
    let file = File::new().key("bad", STRING, string([b'a', 0xff])).key(
        "tokens",
        ARRAY,
        array(STRING, 2, &tokens),
    );
    let gguf = parse(&file.bytes()).unwrap();
    assert_eq!(gguf.meta.get_bytes("bad").unwrap(), Some(&[b'a', 0xff][..]));
    let text = gguf.meta.get_str("bad").unwrap_err().to_string();
    assert!(text.contains("bad is not valid UTF-8"), "{text}");
    let mut tokens = gguf.meta.get_str_array("tokens").unwrap().unwrap();
    assert_eq!(tokens.next().unwrap().1, [0xff, 0xfe]);
}

#[test]
fn other_files_are_named() {
    for (bytes, wants) in [
        (&b"<!DOCTYPE html><html>"[..], "saved web page"),
        (b"\xef\xbb\xbf\n <HTML lang=en>", "saved web page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "LFS pointer",
        ),
        (b"PK\x03\x04rest", "zip or PyTorch"),
        (b"lmgg\x01\0\0\0", "old GGML"),
        (b"something else", "not a GGUF file"),
        (b"GG", "too short"),
        (b"GGUF", "truncated"),
        (b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0", "version 1 is no longer"),
        (b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0", "big-endian"),
        (b"GGUF\x04\0\0\0\0\0\0\0\0\0\0\0", "version 4 is unknown"),
    ] {
        let text = message(parse(bytes));
        assert!(text.contains(wants), "{text}");
    }
}

#[test]
fn what_is_not_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, "").unwrap();
    let folder = dir.path().join("folder.gguf");
    std::fs::create_dir(&folder).unwrap();
    for mmap in [true, false] {
        let open = |path: &Path| message(Gguf::open(path, mmap));
        assert!(open(&empty).contains("the file is empty"));
        assert!(open(&folder).contains("not a regular file"));
        assert!(open(&dir.path().join("absent.gguf")).contains("check the path"));
    }
}

#[test]
fn more_than_memory_is_an_error() {
    let path = Path::new("huge.gguf");
    let result = FileBytes::read(path, &mut std::io::empty(), u64::MAX);
    assert!(matches!(result, Err(Error::DoesNotFit(text)) if text.contains("--no-mmap")));
    assert!(
        FileBytes::read(path, &mut std::io::empty(), 10).is_err(),
        "short"
    );
}

#[test]
fn damaged_keys_are_refused() {
    let gib = (1u64 << 30).to_le_bytes();
    let new = File::new;
    refused(
        &new().key("a", U8, [1]).key("a", U8, [2]),
        "key a appears twice",
    );
    refused(&new().key([0xff, 0xff], U8, [1]), "not valid UTF-8");
    refused(&new().key("k".repeat(65_536), U8, [1]), "65536 bytes long");
    refused(&new().key("a", 13, [1]), "key a has unknown value type 13");
    refused(&new().key("a", STRING, gib), "a needs 1073741824 bytes");
    refused(&new().key("a", STRING, u64::MAX.to_le_bytes()), "truncated");
    refused(&new().key("a", BOOL, [2]), "a holds a bool of value 2");
    let bools = array(BOOL, 3, &[0, 1, 9]);
    refused(&new().key("a", ARRAY, bools), "a holds a bool of value 9");
    let nested = array(ARRAY, 1, &array(U8, 1, &[1]));
    refused(&new().key("a", ARRAY, nested), "a nests arrays");
    for ty in [U8, I8, U32, STRING, BOOL] {
        let endless = array(ty, u64::MAX, &[0; 64]);
        refused(&new().key("a", ARRAY, endless), "damaged: a needs");
    }
    let strings = array(STRING, 2, &[&string("ok")[..], &gib].concat());
    refused(&new().key("a", ARRAY, strings), "needs 1073741824 bytes");
    // A name that would break the message's line or colour the terminal.
    refused(&new().key("\n\x1b[31m", 13, [1]), "key \\n\\u{1b}[31m has");
}

#[test]
fn alignment_is_bounded() {
    for bad in [0, 1, 4, 33, 1 << 30, u32::MAX] {
        let file = File::new().key("general.alignment", U32, bad.to_le_bytes());
        refused(&file, &format!("general.alignment is {bad},"));
    }
    let mut file = sample().key("general.alignment", U32, 4096u32.to_le_bytes());
    refused(
        &file,
        "tensor two lies at offset 32, not a multiple of 4096",
    );
    file = File::new()
        .key("general.alignment", U32, 4096u32.to_le_bytes())
        .tensor("one", &[4], 0, 0);
    file.alignment = 4096;
    assert_eq!(parse(&file.bytes()).unwrap().tensors[0].offset, 4096);
}

#[test]
fn damaged_tensors_are_refused() {
    let new = File::new;
    // The product of these is 4 in 64 bits.
    let wraps = [4_194_305, 4_194_305, 211_106_198_978_564];
    refused(
        &new().tensor("t", &wraps, 0, 0),
        "tensor t has shape [4194305",
    );
    let long = [(1 << 42) + 1];
    refused(
        &new().tensor("t", &long, 0, 0),
        "truncated: its tensors end",
    );
    refused(&new().tensor("t", &[u64::MAX], 0, 0), "impossible");
    refused(
        &new().tensor("t", &[1 << 62], 24, 0),
        "truncated: its tensors end",
    );
    refused(
        &new().tensor("t", &[(1 << 63) + 8], 24, 0),
        "claims 9223372036854775816 bytes",
    );
    refused(&new().tensor("t", &[4, 0], 0, 0), "shape [4, 0]");
    refused(&new().tensor("t", &[33], 2, 0), "impossible for type Q4_0");
    refused(
        &new().tensor("t", &[4], 4, 0),
        "tensor t has the unknown type 4; fetch",
    );
    refused(&new().tensor("t", &[4], 99, 0), "F32, F16");
    refused(
        &new().tensor("t", &[1; 5], 0, 0),
        "tensor t has 5 dimensions",
    );
    refused(&new().tensor("t", &[], 0, 0), "tensor t has 0 dimensions");
    let million = [&string("t")[..], &1_000_000u32.to_le_bytes()].concat();
    refused(
        &new().raw_tensor(&million),
        "tensor t has 1000000 dimensions",
    );
    refused(&new().tensor("t".repeat(65), &[4], 0, 0), "65 bytes long");
    refused(&new().tensor([0xff], &[4], 0, 0), "not valid UTF-8");
    refused(&new().tensor("t", &[4], 0, 8), "t lies at offset 8, not");
    refused(
        &new().tensor("t", &[4], 0, u64::MAX - 31),
        "tensor t claims 16 bytes",
    );
    let twice = new().tensor("t", &[4], 0, 0);
    refused(&twice.tensor("t", &[4], 0, 32), "tensor t appears twice");
    let overlap = new().tensor("a", &[9], 0, 0);
    refused(&overlap.tensor("b", &[4], 0, 32), "tensors a and b overlap");
}

#[test]
fn false_counts_are_refused() {
    let mut bytes = sample().bytes();
    for (at, wants) in [(8, "tensors"), (16, "metadata keys")] {
        let good: Vec<u8> = bytes[at..at + 8].to_vec();
        for count in [1_000_001u64, u64::MAX] {
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let text = message(parse(&bytes));
            assert!(text.contains(&format!("{count} {wants}")), "{text}");
        }
        bytes[at..at + 8].copy_from_slice(&100u64.to_le_bytes());
        message(parse(&bytes));
        bytes[at..at + 8].copy_from_slice(&good);
    }
}

/// Every shorter file is refused, and says how long it should be once the
/// header is whole.
#[test]
fn every_truncation_is_refused() {
    let bytes = sample().bytes();
    assert!(parse(&bytes).is_ok());
    let data = bytes.len() - sample().data.len();
    for len in 0..bytes.len() {
        let text = message(parse(&bytes[..len]));
        if len >= data {
            let wants = format!("end at byte {}, the file has {len};", bytes.len());
            assert!(text.contains(&wants), "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..Default::default() })]

    /// A valid file with a few bytes changed parses or is refused in one line;
    /// what it then holds can all be read.
    #[test]
    fn mutations_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample().bytes();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        match parse(&bytes) {
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
            Ok(gguf) => {
                for tensor in &gguf.tensors {
                    prop_assert_eq!(gguf.data(tensor).len(), tensor.bytes);
                }
                for (key, _) in gguf.meta.iter() {
                    let _ = gguf.meta.get_number_array(key);
                    let _ = gguf.meta.get_bytes(key);
                    if let Ok(Some(strings)) = gguf.meta.get_str_array(key) {
                        let len = strings.len();
                        prop_assert_eq!(strings.count(), len);
                    }
                }
            }
        }
    }
}

/// Needs a model; `cargo test --release --test gguf -- --ignored --nocapture`.
#[test]
#[ignore = "timing: needs models/gemma-3-270m-q4_k_m.gguf, see scripts/get-model.sh"]
fn a_large_vocabulary_opens_quickly() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("models/gemma-3-270m-q4_k_m.gguf");
    let times = (0..10).map(|_| {
        let start = std::time::Instant::now();
        Gguf::open(&path, true).unwrap();
        start.elapsed().as_secs_f64() * 1e3
    });
    let best = times.fold(f64::INFINITY, f64::min);
    println!("{best:.2} ms");
    // 11 MB of header; page faults on the map are most of the time.
    assert!(best < 30.0, "{best} ms");
}
