//! Writes GGUF files byte by byte, also ones no writer would make.

/// Value type ids of the format.
pub const U8: u32 = 0;
pub const I8: u32 = 1;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// A file in the making.
#[derive(Clone)]
pub struct File {
    pub version: u32,
    keys: Vec<u8>,
    n_keys: u64,
    tensors: Vec<u8>,
    n_tensors: u64,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl File {
    /// Version 3, no keys, no tensors, 64 bytes of data.
    pub fn new() -> File {
        File {
            version: 3,
            keys: Vec::new(),
            n_keys: 0,
            tensors: Vec::new(),
            n_tensors: 0,
            alignment: 32,
            data: vec![7; 64],
        }
    }

    /// A key of any value type with its value's bytes.
    pub fn key(mut self, key: impl AsRef<[u8]>, ty: u32, value: impl AsRef<[u8]>) -> File {
        self.keys.extend(string(key));
        self.keys.extend(ty.to_le_bytes());
        self.keys.extend(value.as_ref());
        self.n_keys += 1;
        self
    }

    /// A tensor record.
    pub fn tensor(mut self, name: impl AsRef<[u8]>, dims: &[u64], ty: u32, offset: u64) -> File {
        self.tensors.extend(string(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        for dim in dims {
            self.tensors.extend(dim.to_le_bytes());
        }
        self.tensors.extend(ty.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.n_tensors += 1;
        self
    }

    /// Raw bytes where the next tensor record would be.
    pub fn raw_tensor(mut self, bytes: &[u8]) -> File {
        self.tensors.extend(bytes);
        self.n_tensors += 1;
        self
    }

    /// The keys of one file of a split model.
    pub fn split(self, no: u32, count: u32) -> File {
        self.key("split.no", U32, no.to_le_bytes())
            .key("split.count", U32, count.to_le_bytes())
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.to_le_bytes());
        out.extend(self.n_keys.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// A string of the format: its length, then its bytes.
pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// An array value: element type, length, elements.
pub fn array(ty: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

/// A file with every value type and three tensors.
pub fn sample() -> File {
    let tokens: Vec<u8> = ["a", "bc", ""].into_iter().flat_map(string).collect();
    let scores: Vec<u8> = [1.5f32, -2.0]
        .into_iter()
        .flat_map(f32::to_le_bytes)
        .collect();
    File::new()
        .key("general.architecture", STRING, string("llama"))
        .key("gpt-oss.block_count", U32, 24u32.to_le_bytes())
        .key("x.u8", U8, [200])
        .key("x.i8", I8, [0xff])
        .key("x.i32", I32, (-5i32).to_le_bytes())
        .key("x.u64", U64, u64::MAX.to_le_bytes())
        .key("x.f32", F32, 0.25f32.to_le_bytes())
        .key("x.bool", BOOL, [1])
        .key("x.bools", ARRAY, array(BOOL, 3, &[1, 0, 1]))
        .key("x.scores", ARRAY, array(F32, 2, &scores))
        .key("x.tokens", ARRAY, array(STRING, 3, &tokens))
        .tensor("one", &[4], 0, 0)
        .tensor("two", &[2, 3], 1, 32)
        .tensor("three", &[32, 2], 8, 64)
        .data(64 + 68)
}

impl File {
    /// Data of this many bytes, each its position.
    pub fn data(mut self, len: usize) -> File {
        self.data = (0..len).map(|i| i as u8).collect();
        self
    }
}
