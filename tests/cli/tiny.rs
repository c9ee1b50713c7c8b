//! Small GGUF files, written byte by byte.

use std::path::{Path, PathBuf};

/// Values a row: one for each token, so that an embedding can name its token.
pub const N_EMBD: usize = 64;
/// Training context of [`model`], in tokens.
pub const N_CTX_TRAIN: u32 = 256;

const UNK: usize = 0;
const EOS: usize = 2;
/// Ids of the letters begin here.
const LETTERS: usize = 4;
/// Ids of the bytes of a crab begin here.
const CRAB: usize = 30;
/// The letter that a crab follows.
const BEFORE_CRAB: usize = 34;
const F32: u32 = 0;

/// A file in the making.
#[derive(Default)]
pub struct Gguf {
    n_keys: u64,
    keys: Vec<u8>,
    tensors: Vec<(String, Vec<u64>, Vec<u8>)>,
    /// GGUF id of every tensor's type.
    pub type_id: u32,
}

impl Gguf {
    fn key(&mut self, key: &str, type_id: u32) -> &mut Vec<u8> {
        self.n_keys += 1;
        string(&mut self.keys, key.as_bytes());
        self.keys.extend(type_id.to_le_bytes());
        &mut self.keys
    }

    pub fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4).extend(value.to_le_bytes());
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6).extend(value.to_le_bytes());
    }

    pub fn text(&mut self, key: &str, value: &str) {
        string(self.key(key, 8), value.as_bytes());
    }

    /// An array of elements that are already little endian.
    fn array(&mut self, key: &str, type_id: u32, elements: &[Vec<u8>]) {
        let out = self.key(key, 9);
        out.extend(type_id.to_le_bytes());
        out.extend((elements.len() as u64).to_le_bytes());
        out.extend(elements.concat());
    }

    /// An F32 tensor, `shape` in GGUF order.
    pub fn tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let shape = shape.iter().map(|&n| n as u64).collect();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.push((name.to_string(), shape, bytes));
    }

    /// The whole file: version 3, alignment 32.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.to_le_bytes());
        out.extend(&self.keys);
        let mut data: Vec<u8> = Vec::new();
        for (name, shape, bytes) in &self.tensors {
            string(&mut out, name.as_bytes());
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(self.type_id.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }

    /// Bytes before the tensors' records.
    #[allow(dead_code)] // for those who write records themselves
    pub fn header_len(&self) -> usize {
        b"GGUF".len() + 4 + 8 + 8 + self.keys.len()
    }

    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes()).expect("the folder can be written");
        path
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// Texts and types of the tokens: three special ones, a space, `a` to `z`, the
/// four bytes of a crab, `E`, and fillers.
fn tokens() -> Vec<(String, u32)> {
    let (normal, unknown, control, byte) = (1, 2, 3, 6);
    let mut tokens = vec![
        ("<unk>".to_string(), unknown),
        ("<s>".to_string(), control),
        ("</s>".to_string(), control),
        ("\u{2581}".to_string(), normal),
    ];
    tokens.extend(('a'..='z').map(|c| (c.to_string(), normal)));
    tokens.extend("🦀".bytes().map(|b| (format!("<0x{b:02X}>"), byte)));
    tokens.push(("E".to_string(), normal));
    let fillers = tokens.len()..N_EMBD;
    tokens.extend(fillers.map(|i| (format!("filler{i}"), normal)));
    tokens
}

/// The token that follows `id` in the language of [`model`].
fn successor(id: usize) -> usize {
    let last_letter = LETTERS + 25;
    let last_byte = CRAB + 3;
    match id {
        _ if id == last_letter || id == last_byte => EOS,
        BEFORE_CRAB => CRAB,
        _ if (LETTERS..last_byte).contains(&id) => id + 1,
        _ => LETTERS,
    }
}

fn add_vocabulary(file: &mut Gguf) {
    file.text("tokenizer.ggml.model", "llama");
    let tokens = tokens();
    let texts: Vec<Vec<u8>> = tokens
        .iter()
        .map(|(text, _)| {
            let mut out = Vec::new();
            string(&mut out, text.as_bytes());
            out
        })
        .collect();
    file.array("tokenizer.ggml.tokens", 8, &texts);
    let le = |v: &(String, u32)| v.1.to_le_bytes().to_vec();
    let types: Vec<Vec<u8>> = tokens.iter().map(le).collect();
    file.array("tokenizer.ggml.token_type", 5, &types);
    let scores = vec![0f32.to_le_bytes().to_vec(); tokens.len()];
    file.array("tokenizer.ggml.scores", 6, &scores);
    file.u32("tokenizer.ggml.bos_token_id", 1);
    file.u32("tokenizer.ggml.eos_token_id", EOS as u32);
    file.u32("tokenizer.ggml.unknown_token_id", UNK as u32);
}

fn add_hparams(file: &mut Gguf, arch: &str) {
    file.text("general.architecture", arch);
    for (key, value) in [
        ("vocab_size", N_EMBD as u32),
        ("context_length", N_CTX_TRAIN),
        ("embedding_length", N_EMBD as u32),
        ("block_count", 1),
        ("feed_forward_length", N_EMBD as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", N_EMBD as u32 / 2),
    ] {
        file.u32(&format!("{arch}.{key}"), value);
    }
    file.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5);
}

/// One layer that adds nothing; the embedding of a token is its own unit
/// vector and the output looks up its successor.
fn add_tensors(file: &mut Gguf) {
    let square = [N_EMBD, N_EMBD];
    let mut embd = vec![0.0; N_EMBD * N_EMBD];
    let mut output = vec![0.0; N_EMBD * N_EMBD];
    for id in 0..N_EMBD {
        embd[id * N_EMBD + id] = 1.0;
        output[successor(id) * N_EMBD + id] = 1.0;
    }
    file.tensor("token_embd.weight", &square, &embd);
    file.tensor("output.weight", &square, &output);
    let ones = [1.0; N_EMBD];
    file.tensor("output_norm.weight", &[N_EMBD], &ones);
    for name in ["attn_norm", "ffn_norm"] {
        file.tensor(&format!("blk.0.{name}.weight"), &[N_EMBD], &ones);
    }
    let zeros = vec![0.0; N_EMBD * N_EMBD];
    for name in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        file.tensor(&format!("blk.0.{name}.weight"), &square, &zeros);
    }
}

/// A model that continues the alphabet and then ends: `abc` with `def...z`;
/// `E` with a crab. Its chat template prints the contents one after another.
pub fn model() -> Gguf {
    let mut file = Gguf::default();
    add_hparams(&mut file, "llama");
    add_vocabulary(&mut file);
    file.text(
        "tokenizer.chat_template",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    add_tensors(&mut file);
    file
}

/// As [`model`], without a chat template.
pub fn base_model() -> Gguf {
    let mut file = Gguf::default();
    add_hparams(&mut file, "llama");
    add_vocabulary(&mut file);
    add_tensors(&mut file);
    file
}

/// The vocabulary of [`model`], without tensors.
pub fn vocabulary() -> Gguf {
    let mut file = Gguf::default();
    add_hparams(&mut file, "llama");
    add_vocabulary(&mut file);
    file
}

/// The tensors of [`model`], without a vocabulary.
pub fn ids_only(arch: &str) -> Gguf {
    let mut file = Gguf::default();
    add_hparams(&mut file, arch);
    file.text("tokenizer.ggml.model", "no_vocab");
    add_tensors(&mut file);
    assert_eq!(file.type_id, F32);
    file
}
