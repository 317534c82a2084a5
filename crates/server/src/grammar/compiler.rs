//! Compiles schemas away from the threads that serve connections, within a time limit.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::finite::has_finite_value;
use super::json::JsonConstraint;
use super::response_format::JsonSchema;
use crate::vocabulary::Vocabulary;

/// Compiled schemas that are kept.
const CACHED_MAX: usize = 32;
/// Schemas that are compiled at the same time.
const THREADS_MAX: usize = 2;
/// States of a request's lexer at most: 1 to 2 kB each.
const LEXER_STATES_MAX: usize = 50_000;
/// A run of white space between two tokens of JSON: models can loop on longer ones.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";
/// Longer tokens never occur in JSON that anyone wants; the engine's trie cannot hold them.
const TOKEN_BYTES_MAX: usize = 512;

/// Why a schema was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The schema's own fault.
    Schema(String),
    /// It takes longer than this.
    Slow(Duration),
    /// Other schemas take too long.
    Busy,
    /// The server's fault.
    Engine(String),
}

/// A compiled schema.
pub(super) struct Compiled {
    /// Before the first token.
    pub(super) constraint: JsonConstraint,
    /// Keywords of the schema that do not count.
    pub(super) unenforced: usize,
}

type Key = [u8; 32];

#[derive(Clone)]
struct Entry {
    matcher: Matcher,
    unenforced: usize,
}

/// Compiles and remembers.
pub(super) struct Compiler {
    shared: Arc<Shared>,
    threads: Arc<Semaphore>,
    timeout: Duration,
}

struct Shared {
    vocabulary: Arc<Vocabulary>,
    end_ids: Vec<u32>,
    /// Made when the first schema comes.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The latest last.
    cache: Mutex<Vec<(Key, Entry)>>,
}

impl Compiler {
    /// Nothing is built yet. A `timeout` of zero is none.
    pub(super) fn new(vocabulary: &Arc<Vocabulary>, end_ids: &[u32], timeout: Duration) -> Self {
        Compiler {
            shared: Arc::new(Shared {
                vocabulary: Arc::clone(vocabulary),
                end_ids: end_ids.to_vec(),
                factory: OnceLock::new(),
                cache: Mutex::default(),
            }),
            threads: Arc::new(Semaphore::new(THREADS_MAX)),
            timeout: match timeout.is_zero() {
                true => Duration::MAX,
                false => timeout,
            },
        }
    }

    /// Compiles a schema, or finds it. A schema that takes too long keeps its thread until it is
    /// through.
    pub(super) async fn compile(&self, schema: JsonSchema) -> Result<Compiled, Fault> {
        if let Some(entry) = self.shared.find(&schema.key) {
            return Ok(entry);
        }
        let wait = tokio::time::timeout(self.timeout, Arc::clone(&self.threads).acquire_owned());
        let Ok(Ok(permit)) = wait.await else {
            return Err(Fault::Busy);
        };
        let (shared, begun) = (Arc::clone(&self.shared), Instant::now());
        let work = tokio::task::spawn_blocking(move || {
            let result = shared.compile(&schema);
            drop(permit);
            result
        });
        match tokio::time::timeout(self.timeout, work).await {
            Ok(Err(error)) => Err(Fault::Engine(error.to_string())),
            // The timer ticks in milliseconds.
            Ok(Ok(result)) if begun.elapsed() <= self.timeout => result,
            Ok(Ok(_)) | Err(_) => Err(Fault::Slow(self.timeout)),
        }
    }
}

impl Shared {
    fn cache(&self) -> MutexGuard<'_, Vec<(Key, Entry)>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, key: &Key) -> Option<Compiled> {
        let mut cache = self.cache();
        let index = cache.iter().position(|(own, _)| own == key)?;
        let found = cache.remove(index);
        let compiled = found.1.compiled();
        cache.push(found);
        Some(compiled)
    }

    fn compile(&self, schema: &JsonSchema) -> Result<Compiled, Fault> {
        let made = || factory(&self.vocabulary, &self.end_ids);
        let factory = self.factory.get_or_init(made);
        let factory = factory
            .as_ref()
            .map_err(|error| Fault::Engine(error.clone()))?;
        let entry = compile(factory, schema).map_err(Fault::Schema)?;
        let compiled = entry.compiled();
        let mut cache = self.cache();
        cache.retain(|(own, _)| *own != schema.key);
        if cache.len() >= CACHED_MAX {
            cache.remove(0);
        }
        cache.push((schema.key, entry));
        Ok(compiled)
    }
}

impl Entry {
    fn compiled(&self) -> Compiled {
        Compiled {
            constraint: JsonConstraint::of(&self.matcher),
            unenforced: self.unenforced,
        }
    }
}

/// The engine for a tokenizer. Marks are no text: JSON never contains them.
fn factory(vocabulary: &Vocabulary, end_ids: &[u32]) -> Result<ParserFactory, String> {
    let count = u32::try_from(vocabulary.len()).map_err(|error| error.to_string())?;
    let word = |id: u32| {
        let bytes = vocabulary.bytes(id);
        match vocabulary.is_added(id) {
            _ if bytes.len() > TOKEN_BYTES_MAX => Vec::new(),
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            false => bytes.to_vec(),
        }
    };
    let words: Vec<Vec<u8>> = (0..count).map(word).collect();
    let end = end_ids.first().copied();
    let info = TokRxInfo::new(count, end.unwrap_or(llguidance::toktrie::INVALID_TOKEN));
    let mut trie = TokTrie::from(&info, &words);
    if !end_ids.is_empty() {
        trie = trie.with_eos_tokens(end_ids);
    }
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|error| error.to_string())?;
    factory.quiet();
    let limits = factory.limits_mut();
    limits.verbose_errors = false;
    limits.max_lexer_states = LEXER_STATES_MAX;
    // An optional property takes four items: the engine's own limit of a row is less than that of a
    // step, and fails an object of 500 of them in the middle of an answer.
    limits.max_items_in_row = limits.step_max_items;
    Ok(factory)
}

fn compile(factory: &ParserFactory, schema: &JsonSchema) -> Result<Entry, String> {
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.to_owned()),
        lenient: !schema.strict,
        ..JsonCompileOptions::default()
    };
    let mut whole = Value::Object(schema.schema.clone());
    let has_value = has_finite_value(&whole);
    options.apply_to(&mut whole);
    let parser = factory.create_parser(TopLevelGrammar::from_json_schema(whole));
    let mut matcher = Matcher::new(parser);
    if let Some(error) = matcher.get_error() {
        return Err(one_line(&error));
    }
    if !has_value {
        return Err("no finite value fits it, as when it requires itself without end".into());
    }
    // Some faults show only when a first token is asked for.
    if let Err(error) = matcher.deep_clone().compute_mask() {
        let reason = one_line(&error.to_string());
        return Err(match reason.as_str() {
            "NoExtensionBias" => "no text fits it, as when it refers to itself without end".into(),
            _ => reason,
        });
    }
    let unenforced = matcher.grammar_warnings().len();
    Ok(Entry {
        matcher,
        unenforced,
    })
}

/// The engine's words without its own state behind them.
fn one_line(error: &str) -> String {
    let end = error.find("\n<").unwrap_or(error.len());
    let words: Vec<&str> = error[..end].split_whitespace().collect();
    words.join(" ")
}
