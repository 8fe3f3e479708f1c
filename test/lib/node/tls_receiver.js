// Receivers that speak TLS, HTTP/1.1 and HTTP/2, for the tests.  The argument
// is a file with a JSON object: a name for each server, with its options.
// Prints their ports as a first line, then a line for each request read in full.
//
// What it answers depends on the path: /once/<how> misbehaves when it sees a
// message for the first time, /always/<how> always, everything else is 200.
'use strict';

const fs = require('fs');
const http2 = require('http2');
const https = require('https');

const servers = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const seen = new Set();
let connections = 0;

// What a server can do to a request over HTTP/2.
const misbehaviours = {
	// It will take no more requests here, and has not looked at this one.
	goaway: (stream, session) => { session.goaway(0, 0); setTimeout(() => socketOf(session).destroy(), 20); },
	calm: (stream, session) => session.goaway(http2.constants.NGHTTP2_ENHANCE_YOUR_CALM, 0, Buffer.from('calm down')),
	refuse: (stream) => stream.close(http2.constants.NGHTTP2_REFUSED_STREAM),
	reset: (stream) => stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR),
	vanish: (stream, session) => socketOf(session).destroy(),
	cut: (stream) => { stream.respond({ ':status': 200, 'content-length': 100 }); stream.write('some'); setTimeout(() => stream.close(http2.constants.NGHTTP2_CANCEL), 20); },
	dies: (stream, session) => { stream.respond({ ':status': 200 }); stream.write('some'); setTimeout(() => socketOf(session).destroy(), 20); },
	// The last answer of this connection.
	last: (stream, session) => { stream.respond({ ':status': 200 }); stream.end('ok'); session.close(); },
	hints: (stream) => { stream.additionalHeaders({ ':status': 103, 'outbox-outcome': 'fail' }); stream.respond({ ':status': 200 }); stream.end('ok'); },
	busy: (stream) => { stream.respond({ ':status': 503, 'outbox-outcome': 'retry; code=busy; after=0' }); stream.end('no'); },
	big: (stream) => { stream.respond({ ':status': 500 }); stream.end(Buffer.alloc(50000000, 'x')); },
	silent: () => {}
};

const sockets = new Map();

// A session lets nobody touch its socket, so we remember it by its port.
function socketOf(session)
{
	return sockets.get(session.outboxPort);
}

function record(name, request, body, socket)
{
	const certificate = socket.getPeerCertificate();
	const line = {
		server: name, path: request.url, version: request.httpVersion, protocol: socket.getProtocol(),
		connection: socket.outboxNumber, headers: request.headers,
		peer: certificate && certificate.subject ? certificate.subject.CN : null, body: body.toString('latin1')
	};
	fs.writeSync(1, JSON.stringify(line) + '\n');
}

function misbehaves(request)
{
	const [, when, how] = request.url.split('/');
	if (when !== 'once' && when !== 'always')
		return null;
	const mark = request.url + ' ' + request.headers['webhook-id'];
	if (when === 'once' && seen.has(mark))
		return null;
	seen.add(mark);
	return how;
}

function answer(name, request, response)
{
	const pieces = [];
	const stream = response.stream;
	const session = stream && stream.session;
	if (stream && !session)
		return;		// gone before it was looked at
	const socket = session ? socketOf(session) : request.socket;
	request.on('data', (piece) => pieces.push(piece));
	request.on('error', () => {});
	request.on('end', () => {
		record(name, request, Buffer.concat(pieces), socket);
		const how = misbehaves(request);
		if (how === null || !stream)
			response.end('ok');
		else if (!session.destroyed && !stream.destroyed)
			misbehaviours[how](stream, session);
	});
}

async function start()
{
	const ports = {};
	for (const [name, options] of Object.entries(servers))
	{
		for (const file of ['cert', 'key', 'ca'])
			if (options[file])
				options[file] = fs.readFileSync(options[file]);
		const server = options.http2 ? http2.createSecureServer({ ...options, allowHTTP1: true }) : https.createServer(options);
		server.on('secureConnection', (socket) => { sockets.set(socket.remotePort, socket); socket.outboxNumber = ++connections; socket.on('error', () => {}); });
		server.on('session', (session) => { session.outboxPort = session.socket.remotePort; session.on('error', () => {}); });
		server.on('stream', (stream) => stream.on('error', () => {}));
		server.on('request', (request, response) => answer(name, request, response));
		server.on('tlsClientError', () => {});
		server.on('sessionError', () => {});
		await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
		ports[name] = server.address().port;
	}
	fs.writeSync(1, JSON.stringify(ports) + '\n');
}

// Ends with the test: its end of the pipe closes.
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
start();
