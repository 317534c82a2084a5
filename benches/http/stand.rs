//! The real server around the stub, in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use engine::CheckpointSource;
use engine::stub::{StubClock, StubSpec};
use serde_json::{Map, Value, json};
use server::grammar::GrammarConfig;
use server::model_files::ModelFiles;
use server::sampling::RequestRules;
use server::serve::{self, KeySource, MetricsConfig, ReasoningField, ServeConfig, ServeLimits};

use crate::client::{post, thread};

/// Different tokens that the stub says in turn.
const WORDS: usize = 256;
const RUNNING_MAX: usize = 32;

/// A running server.
pub struct Stand {
    pub address: SocketAddr,
    pub clock: StubClock,
    /// Ids and texts, all different, none with a character that JSON escapes.
    pub words: Vec<(u32, String)>,
}

impl Stand {
    /// Starts one whose steps take this long. It runs until the process ends.
    pub fn start(step: Duration) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = CheckpointSource::Folder(root.join("crates/server/spinney-tiny"));
        let files = ModelFiles::read(&source, None).expect("the bundled model is complete");
        let vocabulary = &files.vocabulary;
        let is_word = |id: &u32| {
            let bytes = vocabulary.bytes(*id);
            bytes.len() > 1 && bytes.iter().all(u8::is_ascii_alphabetic)
        };
        let words: Vec<(u32, String)> = (0..vocabulary.len() as u32)
            .filter(|id| !vocabulary.is_added(*id))
            .filter(is_word)
            .take(WORDS)
            .map(|id| {
                (
                    id,
                    String::from_utf8_lossy(vocabulary.bytes(id)).into_owned(),
                )
            })
            .collect();
        assert_eq!(words.len(), WORDS);
        let spec = StubSpec {
            words: words.iter().map(|(id, _)| *id).collect(),
            vocab_used: vocabulary.len(),
            step,
            running_max: RUNNING_MAX,
            context_length: 16_384,
        };
        let (engine, clock) = engine::stub::start(spec).expect("the stub starts");
        // Nobody else asks for ports here; one that was free a moment ago still is.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let config = config(address.port());
        thread(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .expect("there are threads");
            let ended = runtime.block_on(serve::run(config, files, engine));
            panic!("the server ended: {ended:?}");
        });
        while TcpStream::connect(address).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Listening comes before ready.
        std::thread::sleep(Duration::from_millis(100));
        Stand {
            address,
            clock,
            words,
        }
    }

    /// A conversation of one message of about this many tokens.
    pub fn chat(&self, prompt_tokens: usize, max_tokens: usize, stream: bool) -> String {
        let content = self.text(prompt_tokens);
        let messages = json!([{"role": "user", "content": content}]);
        let body = json!({"model": "stub", "messages": messages, "max_tokens": max_tokens,
            "stream": stream});
        post("/v1/chat/completions", &body.to_string())
    }

    /// A conversation of many messages of about this many tokens each.
    pub fn conversation(&self, messages: usize, tokens: usize) -> String {
        let content = self.text(tokens);
        let message = |index: usize| {
            let role = ["user", "assistant"][index % 2];
            json!({"role": role, "content": content})
        };
        // The last word is the user's.
        let messages: Vec<Value> = (0..messages | 1).map(message).collect();
        let body = json!({"model": "stub", "messages": messages, "max_tokens": 1});
        post("/v1/chat/completions", &body.to_string())
    }

    fn text(&self, tokens: usize) -> String {
        let words = [
            "the", " city", " of", " stone", " and", " the", " river", ",", " red", " in",
        ];
        (0..tokens).map(|i| words[i % words.len()]).collect()
    }
}

fn config(port: u16) -> ServeConfig {
    ServeConfig {
        host: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port,
        api_keys: Vec::new(),
        key_source: KeySource::default(),
        admin_api_key: None,
        metrics: MetricsConfig::default(),
        flags: Map::new(),
        metrics_require_key: false,
        served_model_names: vec!["stub".into()],
        any_model_name: false,
        model_path: "stub".into(),
        rules: RequestRules::default(),
        grammar: GrammarConfig::default(),
        limits: ServeLimits::default(),
        stream_usage: false,
        request_metrics: true,
        reasoning_field: ReasoningField::default(),
        allowed_origins: Vec::new(),
        drain_delay: Duration::ZERO,
        drain_timeout: Duration::from_secs(1),
    }
}
