//! The committed generated code is what the `.proto` files say.
//!
//! After changing them: `GAPSCOPE_UPDATE_WIRE=1 cargo test -p gapscope-proto --test wire_is_current`.

use std::path::Path;

#[test]
fn generated_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(["v1/gapscope.proto"], [root.join("proto")])
        .expect("the .proto files compile");
    let out = tempfile::tempdir().expect("a temporary folder");
    tonic_prost_build::configure()
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("code generation");
    let fresh = std::fs::read_to_string(out.path().join("gapscope.v1.rs")).expect("generated file");
    let committed_path = root.join("src/wire/gapscope.v1.rs");
    if std::env::var_os("GAPSCOPE_UPDATE_WIRE").is_some() {
        std::fs::write(&committed_path, &fresh).expect("write the generated file");
    }
    let committed = std::fs::read_to_string(&committed_path).unwrap_or_default();
    assert!(
        committed == fresh,
        "proto/src/wire/gapscope.v1.rs is not what proto/proto/v1/gapscope.proto gives; \
         run GAPSCOPE_UPDATE_WIRE=1 cargo test -p gapscope-proto --test wire_is_current"
    );
}
