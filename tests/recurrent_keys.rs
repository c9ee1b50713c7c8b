//! Keys of models with recurrent layers: what is no size is refused, whatever it is,
//! and attention may be missing where the architecture allows it.

#[allow(dead_code, reason = "shared with tests that evaluate")]
mod common;

use common::data;
use llama_rs::gguf::{Gguf, Value};
use llama_rs::model::{Model, Overrides};

/// Loads a fixture with keys of its architecture replaced.
fn load(file: &str, keys: &[(&str, u32)]) -> llama_rs::Result<Model> {
    let arch = file.split("-dense").next().expect("a name");
    let full =
        |(key, value): &(&str, u32)| (format!("{arch}.{key}"), Value::Uint(u64::from(*value)));
    let overrides = Overrides {
        kv: keys.iter().map(full).collect(),
        ..Overrides::default()
    };
    let path = data().join("arch").join(format!("{file}.gguf"));
    Model::load(Gguf::open(&path, true)?, &overrides)
}

#[test]
fn sizes_that_no_model_has_are_refused() {
    let files = [
        "mamba-dense-Q4_K_M",
        "mamba2-dense-Q8_0",
        "jamba-dense-Q4_1",
        "falcon-h1-dense-Q4_0",
        "granitehybrid-dense-Q4_K_M",
        "nemotron_h-dense-Q4_K_M",
        "qwen35-dense-Q4_K_M",
    ];
    let sizes = [
        "ssm.inner_size",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.time_step_rank",
        "block_count",
        "embedding_length",
    ];
    for file in files {
        assert!(load(file, &[]).is_ok(), "{file}");
        for key in sizes {
            for value in [0, 1, 3, 17, 1025, 4097, 1 << 20, 1 << 30, u32::MAX] {
                let loaded = load(file, &[(key, value)]);
                // Fewer layers than the file has are a model too.
                let fewer = key == "block_count" && (1..4).contains(&value);
                assert_eq!(loaded.is_ok(), fewer, "{file}: {key} = {value}");
            }
        }
    }
    let grouped = [
        "mamba2-dense-Q8_0",
        "nemotron_h-dense-Q4_K_M",
        "qwen35-dense-Q4_K_M",
    ];
    for file in grouped {
        for value in [3, 4, 8, 4096, u32::MAX] {
            let loaded = load(file, &[("ssm.group_count", value)]);
            assert!(loaded.is_err(), "{file}: {value} groups");
        }
    }
}

#[test]
fn attention_may_be_missing_only_where_it_can() {
    let none = [("attention.head_count", 0), ("attention.head_count_kv", 0)];
    let odd = [("attention.head_count", 4), ("attention.head_count_kv", 3)];
    for file in ["mamba-dense-Q4_K_M", "mamba2-dense-Q8_0"] {
        for keys in [none, odd] {
            let model = load(file, &keys).expect("heads mean nothing here");
            let hp = model.hparams();
            assert!(hp.recurrent.iter().all(Option::is_some));
            assert!((0..hp.n_layer).all(|il| hp.n_embd_k(il) == 0 && hp.n_embd_v(il) == 0));
        }
    }
    for file in ["falcon-h1-dense-Q4_0", "llama-dense-Q4_K_M"] {
        for keys in [none, odd] {
            assert!(load(file, &keys).is_err(), "{file}: {keys:?}");
        }
    }
    let jamba = load("jamba-dense-Q4_1", &[]).expect("a hybrid");
    let hp = jamba.hparams();
    for il in 0..hp.n_layer {
        assert_eq!(hp.recurrent[il].is_some(), hp.n_head_kv[il] == 0);
    }
    // Heads without which its attention layer cannot be.
    assert!(load("jamba-dense-Q4_1", &[("attention.head_count", 0)]).is_err());
    assert!(load("jamba-dense-Q4_1", &[("attention.head_count", 3)]).is_err());
}
