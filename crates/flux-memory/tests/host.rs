//! The host backend: ordering, bounds, and what happens when things go wrong.

use flux_memory::{
    Address, Buffer, Device, Error, Event, FaultLog, Placement, Stream, SymmetricSignals, WaitSite,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn site(peer: u32, signal: u32) -> WaitSite {
    WaitSite { peer, tile: WaitSite::NO_TILE, signal }
}

fn launch(stream: &Stream, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    match stream {
        Stream::Host(stream) => stream.launch(work),
        Stream::Cuda(_) => panic!("this is the host's test"),
    }
}

#[test]
fn an_event_orders_two_streams() {
    let device = Device::host();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let event = Event::new(&device).unwrap();
    let buffer = Buffer::allocate(&device, 8, Placement::Device).unwrap();
    let source = Buffer::allocate(&device, 8, Placement::Device).unwrap();
    second.wait(&event).unwrap(); // never recorded yet: does not wait
    for round in 0..100_u64 {
        source.upload(&second, 0, &round.to_ne_bytes()).unwrap();
        launch(&first, || std::thread::sleep(Duration::from_micros(200))).unwrap();
        // SAFETY: both buffers outlive the copy; `second` reads only after the event.
        unsafe { first.copy(buffer.address(), source.address(), 8).unwrap() };
        first.record(&event).unwrap();
        second.wait(&event).unwrap();
        let mut read = [0; 8];
        buffer.download(&second, 0, &mut read).unwrap();
        assert_eq!(u64::from_ne_bytes(read), round);
    }
}

/// Two ranks hand one buffer to and fro: what is written before a signal is seen after it, and an acknowledgement keeps
/// the buffer from being overwritten early.
#[test]
fn signals_carry_data_and_acknowledgements_protect_it() {
    const ROUNDS: u32 = 2000;
    let device = Device::host();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let signals =
        SymmetricSignals::allocate(&[device.clone(), device.clone()], 1, Placement::Device).unwrap();
    let shared = Buffer::allocate(&device, 4096, Placement::PinnedHost).unwrap();
    let seen = Buffer::allocate(&device, ROUNDS as usize, Placement::Device).unwrap();
    let sources: Vec<_> =
        (0..2).map(|_| Buffer::allocate(&device, 4096, Placement::Device).unwrap()).collect();
    for (byte, source) in sources.iter().enumerate() {
        source.upload(&streams[0], 0, &[u8::try_from(byte).unwrap(); 4096]).unwrap();
    }
    let log = FaultLog::new(&device, 0, Duration::from_secs(20)).unwrap();
    let data = log.wait_point(0, vec![(signals.word(1, 0), site(0, 0))]).unwrap();
    let ack = log.wait_point(0, vec![(signals.word(0, 0), site(1, 0))]).unwrap();
    for epoch in 1..=ROUNDS {
        // SAFETY: all buffers live until both streams are synchronised.
        unsafe {
            streams[0].wait_values(&ack, epoch - 1).unwrap();
            streams[0].copy(shared.address(), sources[epoch as usize % 2].address(), 4096).unwrap();
            streams[0].write_values(&[(signals.word(1, 0), epoch)]).unwrap();
            streams[1].wait_values(&data, epoch).unwrap();
            streams[1].copy(seen.address().add(epoch as usize - 1), shared.address().add(4095), 1).unwrap();
            streams[1].write_values(&[(signals.word(0, 0), epoch)]).unwrap();
        }
    }
    streams[0].synchronize().unwrap();
    let mut read = vec![0; ROUNDS as usize];
    seen.download(&streams[1], 0, &mut read).unwrap();
    assert!(read.iter().zip(1..).all(|(&byte, epoch): (_, u32)| u32::from(byte) == epoch % 2));
    assert_eq!(log.fault(), None);
}

#[test]
fn an_expired_wait_is_recorded_once_and_ends_the_others() {
    let device = Device::host();
    let stream = device.stream().unwrap();
    let signals = SymmetricSignals::allocate(std::slice::from_ref(&device), 3, Placement::Device).unwrap();
    let log = FaultLog::new(&device, 3, Duration::from_millis(100)).unwrap();
    let waits = [0, 1, 2].map(|i| (signals.word(0, i as usize), site(5, i)));
    let point = log.wait_point(7, waits.to_vec()).unwrap();
    let begin = Instant::now();
    // SAFETY: the signals outlive the waits.
    unsafe {
        stream.write_values(&[(signals.word(0, 0), 9)]).unwrap();
        for _ in 0..50 {
            stream.wait_values(&point, 9).unwrap();
        }
    }
    stream.synchronize().unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(100) && begin.elapsed() < Duration::from_secs(3));
    let fault = log.fault().unwrap();
    assert_eq!(
        (fault.rank, fault.peer, fault.op, fault.signal, fault.seen, fault.wanted),
        (3, 5, 7, 1, 0, 9)
    );
}

/// Left to itself, a stream that waits looks at its signals once in a millisecond.
#[test]
fn a_stream_that_waits_is_woken() {
    let device = Device::host();
    let (waits, writes) = (device.stream().unwrap(), device.stream().unwrap());
    let signals = SymmetricSignals::allocate(std::slice::from_ref(&device), 1, Placement::Device).unwrap();
    let log = FaultLog::new(&device, 0, Duration::from_secs(10)).unwrap();
    let point = log.wait_point(0, vec![(signals.word(0, 0), site(0, 0))]).unwrap();
    let asleep = Duration::from_micros(300);
    let round = |epoch| {
        let begin = Instant::now();
        // SAFETY: the signals outlive the wait.
        unsafe { waits.wait_values(&point, epoch).unwrap() };
        launch(&writes, move || std::thread::sleep(asleep)).unwrap();
        // SAFETY: as above.
        unsafe { writes.write_values(&[(signals.word(0, 0), epoch)]).unwrap() };
        waits.synchronize().unwrap();
        begin.elapsed()
    };
    let fastest = (1..=20).map(round).min().unwrap();
    assert!(fastest < asleep + Duration::from_micros(400), "{fastest:?}");
}

#[test]
fn a_panic_is_reported_and_nobody_hangs() {
    let device = Device::host();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let event = Event::new(&device).unwrap();
    launch(&first, || panic!("on purpose")).unwrap();
    first.record(&event).ok();
    second.wait(&event).unwrap();
    second.synchronize().unwrap();
    assert!(matches!(first.synchronize(), Err(Error::StreamPanicked { message }) if message == "on purpose"));
    assert!(matches!(first.record(&event), Err(Error::StreamPanicked { .. })));
    second.wait(&event).unwrap();
    second.synchronize().unwrap();
}

#[test]
fn bad_requests_are_errors() {
    let device = Device::host();
    let stream = device.stream().unwrap();
    let buffer = Buffer::allocate(&device, 16, Placement::Device).unwrap();
    assert!(matches!(buffer.upload(&stream, 9, &[0; 8]), Err(Error::OutOfBounds { end: 17, .. })));
    assert!(matches!(buffer.download(&stream, usize::MAX, &mut [0; 8]), Err(Error::OutOfBounds { .. })));
    let huge = Buffer::allocate(&device, usize::MAX / 2, Placement::Device).unwrap_err();
    assert!(huge.to_string().starts_with("out of memory"), "{huge}");
    assert!(Buffer::allocate(&device, 0, Placement::Device).is_ok());
    let signals = SymmetricSignals::allocate(&[device], 4, Placement::Device).unwrap();
    assert_eq!((signals.word(1, 0), signals.len()), (Address::NULL, 4));
    let unused = Arc::clone(&FaultLog::new(&Device::host(), 0, Duration::ZERO).unwrap());
    assert_eq!(unused.fault(), None);
}

/// Where there is no GPU, the CUDA backend says so instead of panicking.
#[test]
fn a_missing_gpu_is_an_error() {
    let count = Device::cuda_count().unwrap_or(0);
    let error = Device::cuda(count).unwrap_err();
    assert!(matches!(error, Error::NoCudaDriver { .. } | Error::NoSuchDevice { .. }), "{error}");
}

#[test]
fn rows_are_copied_between_pitches() {
    let device = Device::host();
    let stream = device.stream().unwrap();
    let from = Buffer::allocate(&device, 12, Placement::Device).unwrap();
    from.upload(&stream, 0, b"ab.cd.ef.gh.").unwrap();
    for (to_pitch, from_pitch, rows, expected) in [
        (4, 3, 3, b"ab--cd--ef------"),
        (2, 3, 4, b"abcdefgh--------"),
        (2, 2, 3, b"ab.cd.----------"), // without gaps on either side
        (usize::MAX, 3, 1, b"ab--------------"),
        (4, 3, 0, b"----------------"),
    ] {
        let to = Buffer::allocate(&device, 16, Placement::Device).unwrap();
        to.upload(&stream, 0, &[b'-'; 16]).unwrap();
        let (to_side, from_side) = ((to.address(), to_pitch), (from.address(), from_pitch));
        // SAFETY: both buffers outlive the download.
        unsafe { stream.copy_rows(to_side, from_side, 2, rows).unwrap() };
        let mut read = [0; 16];
        to.download(&stream, 0, &mut read).unwrap();
        assert_eq!(&read, expected, "{to_pitch} {from_pitch} {rows}");
    }
}

/// Two handles to one log: whoever waits for a rank that waits itself is more patient, and gives up with it.
#[test]
fn a_patient_wait_shares_the_log() {
    let device = Device::host();
    let signals = SymmetricSignals::allocate(std::slice::from_ref(&device), 2, Placement::Device).unwrap();
    let log = FaultLog::new(&device, 3, Duration::from_millis(300)).unwrap();
    let patient = log.with_budget(Duration::from_secs(100));
    let [impatient, patient] = [(&log, 0), (&patient, 1)].map(|(log, signal)| {
        log.wait_point(7, vec![(signals.word(0, signal as usize), site(1, signal))]).unwrap()
    });
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let begin = Instant::now();
    // SAFETY: the signals outlive the waits.
    unsafe {
        streams[0].wait_values(&patient, 1).unwrap();
        streams[1].wait_values(&impatient, 1).unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert!(begin.elapsed() < Duration::from_secs(50));
    let fault = log.fault().unwrap();
    assert_eq!((fault.rank, fault.op, fault.signal), (3, 7, 0));
}
