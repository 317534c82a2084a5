//! Compiles `kernels/*.cu` to fat binaries that `src/cuda/kernel.rs` embeds. Without the `cuda`
//! feature there is nothing to do, and no CUDA compiler is needed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{env, fs};

/// Machine code for these; the newest also as PTX, for GPUs that came later.
const ARCHS: [&str; 4] = ["80", "89", "90", "120"];
/// Kernels whose file starts with this use instructions of sm_90a.
const HOPPER_PREFIX: &str = "sm90_";

fn main() -> Result<(), Box<dyn Error>> {
    let kernels = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../kernels");
    println!("cargo:rerun-if-changed={}", kernels.display());
    for name in ["NVCC", "CUDA_HOME", "SPINNEY_CUDA_ARCHS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let archs = env::var("SPINNEY_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.join(" "));
    println!("cargo:rustc-env=SPINNEY_KERNEL_ARCHS={archs}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut sources: Vec<PathBuf> = fs::read_dir(&kernels)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    let lanes = env::var("NUM_JOBS")?.parse::<usize>()?.max(1);
    for group in sources.chunks(lanes) {
        let mut running = Vec::new();
        for source in group {
            running.push((source, compile(source, &kernels, &out, &archs)?));
        }
        for (source, mut compiler) in running {
            if !compiler.wait()?.success() {
                return Err(format!("nvcc failed on {}", source.display()).into());
            }
        }
    }
    fs::write(out.join("modules.rs"), modules(&sources, &out))?;
    Ok(())
}

fn stem(source: &Path) -> &str {
    source
        .file_stem()
        .and_then(|stem| stem.to_str())
        .expect("kernel files have plain names")
}

fn compile(
    source: &Path,
    include: &Path,
    out: &Path,
    archs: &str,
) -> Result<Child, Box<dyn Error>> {
    let mut nvcc = Command::new(nvcc());
    nvcc.args([
        "-fatbin",
        "-O3",
        "-std=c++17",
        "-lineinfo",
        "--expt-relaxed-constexpr",
    ])
    .arg("-I")
    .arg(include);
    if stem(source).starts_with(HOPPER_PREFIX) {
        nvcc.args(["-gencode", "arch=compute_90a,code=sm_90a"]);
    } else {
        let newest = archs.split_whitespace().next_back().unwrap_or_default();
        for arch in archs.split_whitespace() {
            let code = match arch == newest && !arch.ends_with('a') {
                true => format!("[sm_{arch},compute_{arch}]"),
                false => format!("sm_{arch}"),
            };
            nvcc.arg("-gencode")
                .arg(format!("arch=compute_{arch},code={code}"));
        }
    }
    if env::var_os("SPINNEY_KERNEL_REPORT").is_some() {
        nvcc.args(["-Xptxas", "-v"]);
    }
    let target = out.join(stem(source)).with_extension("fatbin");
    nvcc.arg("-o").arg(target).arg(source);
    nvcc.spawn().map_err(|error| {
        format!(
            "cannot start {:?} ({error}); set NVCC or CUDA_HOME, or fetch a compiler with \
             scripts/cuda/fetch-compiler.sh",
            nvcc.get_program()
        )
        .into()
    })
}

fn nvcc() -> PathBuf {
    match (env::var_os("NVCC"), env::var_os("CUDA_HOME")) {
        (Some(nvcc), _) => nvcc.into(),
        (None, Some(home)) => PathBuf::from(home).join("bin/nvcc"),
        (None, None) => "nvcc".into(),
    }
}

/// The table of embedded fat binaries.
fn modules(sources: &[PathBuf], out: &Path) -> String {
    let mut code = String::from(
        "/// Fat binaries by the stem of their source.\n\
         pub(super) const MODULES: &[(&str, &[u8])] = &[\n",
    );
    for source in sources {
        let stem = stem(source);
        let fatbin = out.join(stem).with_extension("fatbin");
        code.push_str(&format!("    ({stem:?}, include_bytes!({fatbin:?})),\n"));
    }
    code.push_str("];\n");
    code
}
