//! What the soak is told.

/// See `USAGE`.
pub struct Options {
    /// Of all modes together.
    pub minutes: f64,
    pub clients: u64,
    pub modes: Vec<String>,
    pub seed: u64,
    /// What resident memory may have grown by behind the warm-up, along the line fitted to it.
    pub rss_growth_mib: f64,
}

const USAGE: &str = "soak [--minutes 30] [--clients 12] [--modes auto,linear,tree-15,plain] \
                     [--seed 1] [--rss-growth-mib 16]; the modes share the minutes, each with a \
                     server of its own; without --modes all minutes go to auto";

impl Options {
    /// From the command line, of which cargo adds `--bench`.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            minutes: 30.0,
            clients: 12,
            modes: vec!["auto".to_owned()],
            seed: 1,
            rss_growth_mib: 16.0,
        };
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        while let Some(flag) = arguments.next() {
            let (flag, value) = match flag.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (flag, arguments.next()),
            };
            let value = value.ok_or(USAGE)?;
            let wrong = || format!("{flag} {value}\n{USAGE}");
            match &*flag {
                "--minutes" => options.minutes = value.parse().map_err(|_| wrong())?,
                "--clients" => options.clients = value.parse().map_err(|_| wrong())?,
                "--seed" => options.seed = value.parse().map_err(|_| wrong())?,
                "--rss-growth-mib" => {
                    options.rss_growth_mib = value.parse().map_err(|_| wrong())?;
                }
                "--modes" => options.modes = value.split(',').map(str::to_owned).collect(),
                _ => return Err(wrong()),
            }
        }
        Ok(options)
    }

    /// Seconds of one mode.
    pub fn seconds(&self) -> f64 {
        self.minutes * 60.0 / self.modes.len() as f64
    }
}

/// Flags of a server in a mode.
pub fn mode_flags(mode: &str) -> Vec<&'static str> {
    match mode {
        "auto" => vec![],
        "linear" => vec!["--speculative-algorithm=DFLASH"],
        "tree-15" => vec!["--speculative-ddtree-budget=15"],
        "plain" => vec!["--speculative-algorithm=NONE"],
        other => panic!("{other}: expected auto, linear, tree-15 or plain"),
    }
}
