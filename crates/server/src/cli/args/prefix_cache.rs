//! What is kept of finished prompts.

use clap::Args;
use engine::PrefixCacheConfig;

use super::speculation::number;

/// Tokens of a page of the KV pool: where a state can be kept.
const PAGE_TOKENS: usize = 64;

/// The prefix cache.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prefix cache")]
pub struct PrefixCacheArgs {
    /// Keep nothing: every prompt is computed from its first token
    #[arg(long)]
    pub disable_radix_cache: bool,

    /// Keep the recurrent state every so many tokens of a prompt, a multiple of 64, beside those at
    /// the ends of turns and where prompts part
    #[arg(long, value_name = "TOKENS", default_value = "4096", value_parser = interval)]
    pub prefix_cache_interval: usize,

    /// Recurrent states kept on the device; 0 = no prefix cache [default: 32 on a GPU, 16 on the CPU,
    /// at most a tenth of the memory that the weights leave]
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text, 0, usize::MAX))]
    pub prefix_cache_snapshots: Option<usize>,

    /// Recurrent states kept in host memory when the device has no place for them
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        value_parser = |text: &str| number(text, 0, usize::MAX)
    )]
    pub prefix_cache_host_snapshots: usize,

    /// Also keep states that decoding made: more is found, but what follows need not equal, bit by
    /// bit, what the same prompt yields without the cache
    #[arg(long)]
    pub prefix_cache_decoded: bool,
}

impl PrefixCacheArgs {
    /// The engine's form.
    pub fn config(&self) -> Option<PrefixCacheConfig> {
        (!self.disable_radix_cache).then_some(PrefixCacheConfig {
            interval: self.prefix_cache_interval,
            snapshots: self.prefix_cache_snapshots,
            host_snapshots: self.prefix_cache_host_snapshots,
            decoded: self.prefix_cache_decoded,
        })
    }
}

fn interval(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(tokens) if tokens > 0 && tokens.is_multiple_of(PAGE_TOKENS) => Ok(tokens),
        _ => Err("expected a multiple of 64, as in 4096".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        cache: PrefixCacheArgs,
    }

    fn config(flags: &[&str]) -> Result<Option<PrefixCacheConfig>, clap::Error> {
        let line = Line::try_parse_from(["spinney"].iter().chain(flags))?;
        Ok(line.cache.config())
    }

    #[test]
    fn flags_become_a_configuration() {
        assert_eq!(config(&[]).unwrap(), Some(PrefixCacheConfig::default()));
        assert_eq!(config(&["--disable-radix-cache"]).unwrap(), None);
        let given = config(&[
            "--prefix-cache-interval=128",
            "--prefix-cache-snapshots=0",
            "--prefix-cache-host-snapshots=7",
            "--prefix-cache-decoded",
        ]);
        let expected = PrefixCacheConfig {
            interval: 128,
            snapshots: Some(0),
            host_snapshots: 7,
            decoded: true,
        };
        assert_eq!(given.unwrap(), Some(expected));
        for wrong in ["0", "63", "100", "-64", "many"] {
            let error = config(&[&*format!("--prefix-cache-interval={wrong}")]).unwrap_err();
            assert!(error.to_string().contains("multiple of 64"), "{error}");
        }
    }
}
