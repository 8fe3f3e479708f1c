// Check requests with the libraries that receivers use.
//
// Reads one JSON object a line: { check, secret, headers, body (base64) },
// and writes one line for each: JSON of what the library made of it, as
// { ok: ... } or { error: "..." }.
'use strict';

const crypto = require('crypto');
const readline = require('readline');
const { HTTP } = require('cloudevents');
const standardwebhooks = require('standardwebhooks');
const svix = require('svix');

// Ed25519 by Node's own crypto: the libraries above know HMAC only.
function verifyEd25519(request) {
  const key = Buffer.from(request.secret.replace(/^whpk_/, ''), 'base64');
  const publicKey = crypto.createPublicKey({
    key: Buffer.concat([Buffer.from('302a300506032b6570032100', 'hex'), key]),
    format: 'der',
    type: 'spki',
  });
  const content = Buffer.concat([
    Buffer.from(`${request.headers['webhook-id']}.${request.headers['webhook-timestamp']}.`),
    request.bytes,
  ]);
  const found = request.headers['webhook-signature']
    .split(' ')
    .map((signature) => signature.split(','))
    .some(([version, value]) => version === 'v1a' && crypto.verify(null, content, publicKey, Buffer.from(value, 'base64')));
  if (!found) throw new Error('no matching v1a signature');
  return true;
}

function readEvents(request) {
  const message = { headers: request.headers, body: request.bytes.toString('utf8') };
  if (!HTTP.isEvent(message)) throw new Error('not a CloudEvent');
  const events = HTTP.toEvent(message);
  return [].concat(events).map((event) => {
    event.validate();
    return event.toJSON();
  });
}

const checks = {
  standardwebhooks: (request) => new standardwebhooks.Webhook(request.secret).verify(request.bytes.toString('utf8'), request.headers),
  svix: (request) => new svix.Webhook(request.secret).verify(request.bytes, request.headers),
  ed25519: verifyEd25519,
  cloudevents: readEvents,
};

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  let answer;
  try {
    const request = JSON.parse(line);
    request.bytes = Buffer.from(request.body, 'base64');
    answer = { ok: checks[request.check](request) };
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}` };
  }
  console.log(JSON.stringify(answer));
});
