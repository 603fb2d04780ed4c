//! Programs that are no tests of verbs: libfabric, UCX, qperf, fio, iSCSI targets and initiators,
//! QEMU, Open MPI.

use super::manager::{TCP, pair};
use super::{Case, Cast, Output, Place, Ready, Troupe};

/// Where they meet: ports of their own choice.
const FI_PINGPONG: Ready = Ready::Tcp(47_592);
const UCX_PERFTEST: Ready = Ready::Tcp(13_337);
const QPERF: Ready = Ready::Tcp(19_765);
const FIO: Ready = Ready::Service(TCP, 8_888);

/// iSCSI's port, and the one of migration.
const ISER: Ready = Ready::Service(TCP, 3_260);
const MIGRATION: Ready = Ready::Service(TCP, 4_444);

/// Of UCX's transports, those over verbs.
const UCX_RC: &str = "UCX_TLS=rc_v,self";
const UCX_UD: &str = "UCX_TLS=ud_v,self";

/// By connection manager, and what qperf measures.
const QPERF_CLIENT: &str = "-cm 1 -t 1 SERVER rc_lat rc_bw rc_rdma_write_bw rc_rdma_read_lat";

const QPERF_SAID: [&str; 6] =
    ["rc_lat:", "rc_bw:", "rc_rdma_write_bw:", "rc_rdma_read_lat:", "latency  =", "bw  "];

const MIGRATED: [&str; 2] = ["Migration status: completed", "VM status: paused (prelaunch)"];

/// What fio is told on both sides, the operation apart.
const FIO_SERVER: &str = "--name=receiver --rw=read --iodepth=16 --ioengine=rdma";
const FIO_CLIENT: &str = "--name=sender --rw=write --iodepth=1 --iodepth_batch_complete=1 --ioengine=rdma \
                          --hostname=SERVER";

/// By what Open MPI connects its processes.
const MPI: [&str; 3] = ["ucx rc", "ucx ud", "libfabric"];

/// Variables, program, options, how many of it and how they meet, what they say, and whether it is
/// for this place.
type Row = (&'static str, &'static str, &'static str, Troupe, Output, bool);

/// The cases of a place.
pub(super) fn cases(place: Place) -> Vec<Case> {
    let fabric = pair("", "SERVER", FI_PINGPONG);
    let ucx = pair("", "SERVER", UCX_PERFTEST);
    // Its server serves until it is ended, and is told by the client what to do.
    let qperf = Troupe { endless: true, ..pair("", QPERF_CLIENT, QPERF) };
    let fio = pair(FIO_SERVER, FIO_CLIENT, FIO);
    let iser = Troupe {
        endless: true,
        ..pair("serve SERVER target/conformance/iser", "ask SERVER target/conformance/iser", ISER)
    };
    let migration = pair(
        "serve SERVER target/conformance/migration",
        "ask SERVER target/conformance/migration",
        MIGRATION,
    );
    let said = |client: &'static [&'static str]| Output::Said { server: &[], client };
    // libfabric takes no address of `lo` for a device's; the others take names and IPv4 addresses.
    let (between, plain) = (place == Place::Ipv4, place != Place::Ipv6);
    let rows = [
        (
            "",
            "fi_pingpong",
            "-p verbs -e msg -c -I 100",
            fabric,
            said(&["1m      100     =100"]),
            between,
        ),
        (
            "",
            "fi_pingpong",
            "-p verbs -e rdm -c -I 100",
            fabric,
            said(&["1m      100     =100"]),
            between,
        ),
        (
            "",
            "fi_pingpong",
            "-p verbs -e dgram -I 100 -S 1024",
            fabric,
            said(&["1k      100     =100"]),
            between,
        ),
        (UCX_RC, "ucx_perftest", "-t tag_bw -s 65536 -n 1000", ucx, said(&["Final:"]), true),
        (UCX_UD, "ucx_perftest", "-t tag_lat -n 1000", ucx, said(&["Final:"]), true),
        (UCX_RC, "ucx_perftest", "-t ucp_put_lat -n 1000", ucx, said(&["Final:"]), true),
        (UCX_RC, "ucx_perftest", "-t ucp_fadd -n 1000", ucx, said(&["Final:"]), true),
        ("", "qperf", "", qperf, said(&QPERF_SAID), true),
        ("", "fio", "--verb=write --port=8888 --bs=64k --size=16m", fio, said(&["err= 0"]), true),
        ("", "fio", "--verb=read --port=8888 --bs=64k --size=16m", fio, said(&["err= 0"]), true),
        ("", "fio", "--verb=send --port=8888 --bs=64k --size=16m", fio, said(&["err= 0"]), true),
        ("", "conformance/iser.sh", "", iser, said(&["the disk was written and read"]), true),
        ("", "conformance/migration.sh", "on", migration, said(&MIGRATED), true),
        ("", "conformance/migration.sh", "off", migration, said(&MIGRATED), true),
    ];
    let rows = rows.into_iter().filter(|row| row.5 && plain);
    let case = |(variables, program, options, troupe, output, _): Row| Case {
        variables,
        program,
        service: "",
        options: options.into(),
        around: "",
        cast: Cast::Troupe(troupe),
        place,
        output,
        in_ci: true,
        limit_s: 60,
    };
    let mut cases: Vec<Case> = rows.map(case).collect();
    if between {
        cases.extend(MPI.map(|options| mpi(options, place)));
    }
    cases
}

/// A job of several processes, which begin each other.
fn mpi(options: &str, place: Place) -> Case {
    Case {
        variables: "",
        program: "conformance/mpi.sh",
        service: "",
        options: options.into(),
        around: "",
        cast: Cast::Alone,
        place,
        output: Output::Listing(&["all was right in 3 ranks"]),
        in_ci: true,
        limit_s: 120,
    }
}
