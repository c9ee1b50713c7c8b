//! GGUF files that hold a small vocabulary, for the unit tests.
#![cfg(test)]

use super::Tokenizer;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use std::io::Write;

/// A GGUF file under construction: keys and nothing else.
#[derive(Clone, Default)]
pub(super) struct File {
    keys: u64,
    body: Vec<u8>,
}

impl File {
    fn key(mut self, key: &str, ty: u32, value: &[u8]) -> File {
        self.keys += 1;
        let key = format!("tokenizer.ggml.{key}");
        self.body.extend((key.len() as u64).to_le_bytes());
        self.body.extend(key.as_bytes());
        self.body.extend(ty.to_le_bytes());
        self.body.extend(value);
        self
    }

    pub(super) fn str(self, key: &str, text: &str) -> File {
        let len = (text.len() as u64).to_le_bytes();
        self.key(key, 8, &[&len, text.as_bytes()].concat())
    }

    pub(super) fn u32(self, key: &str, value: u32) -> File {
        self.key(key, 4, &value.to_le_bytes())
    }

    pub(super) fn flag(self, key: &str, value: bool) -> File {
        self.key(key, 7, &[u8::from(value)])
    }

    fn array(self, key: &str, ty: u32, items: Vec<Vec<u8>>) -> File {
        let len = (items.len() as u64).to_le_bytes();
        self.key(
            key,
            9,
            &[&ty.to_le_bytes()[..], &len, &items.concat()].concat(),
        )
    }

    pub(super) fn strings(self, key: &str, items: &[String]) -> File {
        let spell = |s: &String| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
        self.array(key, 8, items.iter().map(spell).collect())
    }

    pub(super) fn types(self, types: &[i32]) -> File {
        let types = types.iter().map(|t| t.to_le_bytes().to_vec()).collect();
        self.array("token_type", 5, types)
    }

    pub(super) fn scores(self, scores: &[f32]) -> File {
        let scores = scores.iter().map(|s| s.to_le_bytes().to_vec()).collect();
        self.array("scores", 6, scores)
    }

    pub(super) fn open(&self) -> Result<Tokenizer> {
        let mut file =
            tempfile::NamedTempFile::new().map_err(|e| Error::io("temporary file", e))?;
        let head = [
            b"GGUF".as_slice(),
            &3u32.to_le_bytes(),
            &[0; 8],
            &self.keys.to_le_bytes(),
        ];
        file.write_all(&[&head.concat()[..], &self.body].concat())
            .map_err(|e| Error::io("temporary file", e))?;
        Tokenizer::from_meta(&Gguf::open(file.path(), false)?.meta)
    }
}

/// `<unk> <s> </s> <|x|>`, bytes, then words; scores fall with the id.
pub(super) fn spm(words: &[&str]) -> File {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|x|>"].map(String::from).to_vec();
    let mut types = vec![2, 3, 3, 3];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.extend([6; 256]);
    tokens.extend(words.iter().map(|word| word.to_string()));
    types.extend(vec![1; words.len()]);
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    File::default()
        .str("model", "llama")
        .strings("tokens", &tokens)
        .types(&types)
        .scores(&scores)
}

/// The 256 bytes in GPT-2's order, merged words, then `specials`.
pub(super) fn bpe(pre: &str, merges: &[&str], specials: &[(&str, i32)]) -> File {
    let spelled = (0..256u32).map(|i| match i {
        0..=93 => char::from(b'!' + i as u8),
        94..=105 => char::from(0xA1 + (i - 94) as u8),
        106..=187 => char::from(0xAE + (i - 106) as u8),
        _ => char::from_u32(0x100 + i - 188).unwrap_or_default(),
    });
    let mut tokens: Vec<String> = spelled.map(String::from).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    tokens.extend(specials.iter().map(|(text, _)| text.to_string()));
    types.extend(specials.iter().map(|(_, ty)| ty));
    let merges: Vec<String> = merges.iter().map(|merge| merge.to_string()).collect();
    File::default()
        .str("model", "gpt2")
        .str("pre", pre)
        .strings("tokens", &tokens)
        .types(&types)
        .strings("merges", &merges)
}
